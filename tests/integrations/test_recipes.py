"""Loops of other libraries, as the recipes have them."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from tests.fake_clock import MS, burn
from torchprof_hooks import Profile, profile

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clock")]

FORWARD_MS, BACKWARD_MS = 10, 15


class Burning(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        burn(FORWARD_MS)
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        burn(BACKWARD_MS)
        return gradient.clone()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Burning.apply(self.fc(x))
        return result


def phases_ms(found: Profile, name: str) -> dict[str, float]:
    """Own times of a row."""
    row = next(row for row in found.rows() if row.name == name)
    return {
        p: totals.self_ns / MS for p, totals in row.phases.items() if totals.self_ns
    }


@pytest.mark.thorough
def test_ignite() -> None:
    engine = pytest.importorskip("ignite.engine", reason="no extra has it")
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = engine.create_supervised_trainer(model, optimizer, nn.MSELoss())
    evaluator = engine.create_supervised_evaluator(model)
    data = [(torch.ones(2, 3), torch.zeros(2, 3))] * 4

    prof, evaluation = profile(), profile()
    trainer.add_event_handler(engine.Events.STARTED, prof.start)
    trainer.add_event_handler(engine.Events.COMPLETED, prof.stop)

    def evaluate() -> None:
        prof.stop()
        with evaluation:
            evaluator.run(data)
        prof.start()

    trainer.add_event_handler(engine.Events.EPOCH_COMPLETED, evaluate)
    trainer.run(data, max_epochs=3)
    found = phases_ms(prof.profile, "Net")
    assert found == {"forward": 12 * FORWARD_MS, "backward": 12 * BACKWARD_MS}
    assert prof.profile.steps == 12
    assert phases_ms(evaluation.profile, "Net") == {"forward": 12 * FORWARD_MS}


class Layers(nn.Module):
    """Checkpoints each of its layers, as recipes for large models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Net() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def test_a_loop_as_torchtune_and_torchtitan_have_it() -> None:
    """Accumulation, checkpoints, clipped gradients, a schedule, tokens per step."""
    torch.manual_seed(0)
    model = Layers()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    batches = [torch.ones(4, 3, requires_grad=True) for _ in range(8)]
    with set_checkpoint_early_stop(False), profile(items_per_step=24) as prof:
        for number, batch in enumerate(batches, 1):
            loss = model(batch).square().mean() / 2
            loss.backward()
            if number % 2 == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                schedule.step()
    found = prof.profile
    assert found.steps == 4
    step_s = 2 * 2 * (2 * FORWARD_MS + BACKWARD_MS) / 1000
    assert found.items_per_second == pytest.approx(24 / step_s)
    assert phases_ms(found, "Layers.layers.1") == {
        "forward": 8 * FORWARD_MS,
        "backward": 8 * BACKWARD_MS,
        "recompute": 8 * FORWARD_MS,
    }


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_keras_on_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layers are modules, its optimizers are its own."""
    monkeypatch.setitem(os.environ, "KERAS_BACKEND", "torch")
    keras = pytest.importorskip("keras", reason="no extra has it")

    class Burns(keras.layers.Layer):  # type: ignore[misc,name-defined]
        def call(self, x: torch.Tensor) -> Any:
            return Burning.apply(x)

    layers = [keras.layers.Dense(3), Burns(name="burns"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("adam", "mse", jit_compile=False)
    x, y = torch.ones(8, 3), torch.ones(8, 1)
    model.fit(x, y, batch_size=2, epochs=1, verbose=0)  # Keras builds the model
    with profile() as prof:
        model.fit(x, y, batch_size=2, epochs=2, verbose=0)
    (row,) = (row for row in prof.profile.rows() if row.class_name == "Burns")
    assert row.phases["forward"].self_ns == 8 * FORWARD_MS * MS
    assert row.phases["backward"].self_ns == 8 * BACKWARD_MS * MS
