"""What checkpointing would save: predictions against what is really measured."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from tests.attribution.checkpointed_models import (
    MODELS,
    Residual,
    Trained,
    chain,
    mlp_block,
    numbered,
    predictions,
    profiled,
    run,
    with_batch,
)
from tests.cores import NATIVE_CORE
from tests.fake_clock import MS, FakeClock, burn
from tests.thorough import THOROUGH
from torchprof_hooks import profile
from torchprof_hooks.documents.build.memory_step import savings_table
from torchprof_hooks.documents.build.view import view_of

pytestmark = NATIVE_CORE


def each_model(*names: str) -> pytest.MarkDecorator:
    """These, and in thorough tests all."""
    return pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=() if name in names else THOROUGH)
            for name in MODELS
        ],
    )


@each_model("MLP", "transformer", "mixture of experts", "U-Net")
def test_ten_models_that_are_really_checkpointed(name: str) -> None:
    found = [*predictions(MODELS[name])]
    assert found
    for each in found:
        assert each.predicted < 0.97 * each.plain
        assert each.predicted == pytest.approx(each.measured, rel=0.05)


def test_a_result_that_only_the_module_itself_keeps_is_told_as_kept() -> None:
    """The ReLU at the end of each `up` keeps its result for itself: nobody can tell
    that from what others keep."""

    def up() -> Trained:
        return MODELS["U-Net"]()._replace(layers=numbered(3, prefix="up."))

    [*_, found] = predictions(up)
    assert found.measured < found.predicted < 1.1 * found.measured


class Attention(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(x).chunk(3, -1)
        out: torch.Tensor = self.out((query @ key.mT).softmax(-1) @ value)
        return out


def test_forward_drops_what_it_keeps_before_it_ends() -> None:
    """As gradients are accumulated, most is in use in forward: in attention, whose
    variables are there until it returns, but not what is only kept for backward."""
    size, count = 64, 2

    def block() -> nn.Module:
        norms = nn.LayerNorm(size), nn.LayerNorm(size)
        mlp = nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size)
        inner = Residual(norms[0], Attention(size)), Residual(norms[1], *mlp)
        return nn.Sequential(*inner)

    def made() -> Trained:
        inputs = partial(torch.randn, 64, 64, size)
        layers = numbered(count)
        return Trained(chain(block, count), inputs, layers, torch.optim.SGD, batches=2)

    [*_, found] = predictions(made)
    assert len(found.layers) == count
    assert found.predicted == pytest.approx(found.measured, rel=0.01)


def test_reentrant_checkpoints_keep_a_little_more() -> None:
    for name in ("MLP", "LSTM"):
        for each in predictions(MODELS[name], use_reentrant=True):
            assert each.predicted == pytest.approx(each.measured, rel=0.05)


def block_of(size: int) -> Trained:
    return Trained(chain(lambda: mlp_block(size), 4), lambda: torch.randn(64, size), [])


def test_the_recorded_step_is_one_with_the_highest_peak() -> None:
    made = block_of(32)
    with profile(memory="cpu") as prof:
        for size in (64, 64, 64, 256, 256, 64, 64):
            run(with_batch(made, size), steps=1)
    memory = prof.profile.memory
    assert memory is not None
    assert memory.step is not None
    assert memory.step.peak_bytes > 0.95 * memory.peak_bytes
    assert max(point.bytes for point in memory.step.points) == memory.step.peak_bytes


def test_without_an_optimizer_a_pass_ends_a_step() -> None:
    model = mlp_block(32)
    with profile(memory="cpu") as prof:
        for _ in range(4):
            model(torch.randn(512, 32)).sum().backward()
    memory = prof.profile.memory
    assert memory is not None
    assert memory.step is not None
    assert memory.step.peak_bytes == pytest.approx(memory.peak_bytes, rel=0.01)
    assert {"forward", "backward"} <= {point.phase for point in memory.step.points}


def taking(milliseconds: float) -> Callable[..., None]:
    """A hook that takes so long."""

    def work(*_: object) -> None:
        burn(milliseconds)

    return work


def test_the_tip_names_the_layers(clock: FakeClock) -> None:
    made = MODELS["transformer"]()
    for layer in made.model.children():
        layer.get_submodule("linear1").register_forward_pre_hook(taking(1))
        layer.get_submodule("norm1").register_forward_pre_hook(taking(1))
    text = profiled(made).report()
    assert "checkpointing Sequential.*: 6 TransformerEncoderLayer" in text
    assert "would lower the peak of a step to 7.0" in text


@pytest.mark.parametrize("batches", [1, 2, 4])
@pytest.mark.parametrize("has_teacher", [False, True])
def test_the_time_is_that_of_all_calls_that_run_again(
    clock: FakeClock, batches: int, has_teacher: bool
) -> None:
    """Of each batch of a step, whichever was recorded; and not of calls without a
    backward. Four blocks of 1 ms in a model that takes another 4 ms a call."""
    model = chain(lambda: mlp_block(32), 4)
    for layer in model.children():
        layer.get_submodule("inner").register_forward_pre_hook(taking(1))
    model.register_forward_pre_hook(taking(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with profile(memory="cpu") as prof:
        for _ in range(4):
            for _ in range(batches):
                inputs = torch.randn(512, 32)
                model(inputs).square().mean().backward()
                if has_teacher:
                    with torch.no_grad():
                        model(inputs)
            optimizer.step()
            optimizer.zero_grad()
    [table] = savings_table(view_of(prof.profile))
    assert table.labels[0] == "Sequential.*: 4 Residual"
    found = {column.name: column.values[0] for column in table.columns}
    assert found["extra_ns"] == batches * 4 * MS
    assert found["extra_share"] == (0.25 if has_teacher else 0.5)
