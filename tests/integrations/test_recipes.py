"""Loops of other libraries, as the recipes have them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from tests.fake_clock import MS
from tests.integrations.burning import (
    BACKWARD_MS,
    BATCH,
    FORWARD_MS,
    LOADING_MS,
    Layer,
    Points,
    totals,
)
from torchprof_hooks import profile

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clock")]

STEPS, ACCUMULATED = 4, 2


@pytest.fixture(scope="module")
def accelerate() -> Any:
    """Importing it adds to the filters for warnings, of which tests leave none."""
    return pytest.importorskip("accelerate", reason="of the extra `test`")


def test_a_loop_with_accelerate(accelerate: Any) -> None:
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=ACCUMULATED
    )
    model, points = Layer(), Points(STEPS * ACCUMULATED * BATCH)
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), 1e-3),
        torch.utils.data.DataLoader(points, batch_size=BATCH),
    )
    with profile() as prof:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    found = prof.profile
    calls = STEPS * ACCUMULATED
    assert found.steps == STEPS
    assert totals(found, "Layer", "forward") == (calls, calls * FORWARD_MS)
    assert totals(found, "Layer", "backward") == (calls, calls * BACKWARD_MS)
    assert found.phase_times_ns()["data"] == calls * LOADING_MS * MS


class Layers(nn.Module):
    """Checkpoints each of its layers, as recipes for large models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def test_a_loop_as_torchtune_and_torchtitan_have_it() -> None:
    """Accumulation, checkpoints, clipped gradients, a schedule, tokens per step."""
    model = Layers()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    calls = STEPS * ACCUMULATED
    batches = [torch.ones(4, 3, requires_grad=True) for _ in range(calls)]
    with set_checkpoint_early_stop(False), profile(items_per_step=24) as prof:
        for number, batch in enumerate(batches, 1):
            loss = model(batch).square().mean() / ACCUMULATED
            loss.backward()
            if number % ACCUMULATED == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                schedule.step()
    found = prof.profile
    assert found.steps == STEPS
    step_s = 2 * ACCUMULATED * (2 * FORWARD_MS + BACKWARD_MS) / 1000
    assert found.items_per_second == pytest.approx(24 / step_s)
    for phase, ms in (
        ("forward", FORWARD_MS),
        ("backward", BACKWARD_MS),
        ("recompute", FORWARD_MS),
    ):
        assert totals(found, "Layers.layers.1", phase) == (calls, calls * ms)
