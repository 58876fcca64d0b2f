"""The largest batch of programs whose memory grows faster than the batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.attribution.checkpointed_models import (
    Trained,
    measured,
    profiled,
    run,
    with_batch,
)
from tests.build import profile_of, timed
from tests.cores import NATIVE_CORE
from torchprof_hooks import Profile, profile
from torchprof_hooks.documents.build.batch import batch_document
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.profiles.batch import largest_batch
from torchprof_hooks.profiles.memory import MemoryFailure, MemorySummary
from torchprof_hooks.profiles.memory_step import MemoryStep


class Distance(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x[:, None] - x[None, :]).pow(2).mean(-1)


def contrastive(batch: int) -> Trained:
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32), Distance()]
    made = Trained(nn.Sequential(*layers), lambda: torch.randn(8, 64), [])
    return with_batch(made, batch)


@NATIVE_CORE
@pytest.mark.parametrize("sizes", [(32, 64), (64, 128)])
def test_the_square_of_the_batch(sizes: tuple[int, ...]) -> None:
    """At 32, the peak is in Adam's step; later, in the backward of the distance."""
    profiles = {size: profiled(contrastive(size)) for size in sizes}
    fit = largest_batch(profiles, 2**27)
    for size in (256, 512):
        found = measured(contrastive(size)).peak_bytes
        assert fit.peak_bytes(size) == pytest.approx(found, rel=0.02)
    assert fit.peak_bytes(fit.largest) <= 2**27 < fit.peak_bytes(fit.largest + 1)
    [(name, power, _)] = fit.faster
    assert (name, round(power, 2)) == ("Sequential.3", 2.0)
    text = text_of(batch_document(fit), width=120)
    assert "Sequential.3 grows with the square of the batch: " in text


class Mixed(nn.Module):
    """Much of its memory is in proportion to the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.relu().sigmoid()
        return torch.cdist(x, x).exp().mean() + x.sum()


@NATIVE_CORE
def test_another_moment_that_may_become_the_highest() -> None:
    def run_of(batch: int) -> Profile:
        model = nn.Sequential(nn.Linear(256, 256), Mixed())
        with profile(memory="cpu") as prof:
            run(Trained(model, lambda: torch.randn(batch, 256), []))
        return prof.profile

    fit = largest_batch({size: run_of(size) for size in (256, 512)}, 2**26)
    assert fit.largest < fit.at_most
    for size, fits in (fit.largest, True), (fit.at_most + 1, False):
        memory = run_of(size).memory
        assert memory is not None
        assert (memory.peak_bytes < 1.01 * 2**26) is fits
    assert "this is a range" in text_of(batch_document(fit))


@NATIVE_CORE
def test_what_is_not_in_the_peak_yet_is_refused() -> None:
    profiles = {size: profiled(contrastive(size)) for size in (4, 8)}
    with pytest.raises(ValueError, match=r"Sequential.3 grows faster .* of batch size"):
        largest_batch(profiles, 2**30)
    assert profiles[8].memory is not None
    fit = largest_batch(profiles, profiles[8].memory.peak_bytes)
    assert fit.faster == ()  # near to what was measured, it matters not


def with_peak(peak_bytes: int, failure: MemoryFailure | None = None) -> Profile:
    step = None if failure else MemoryStep(peak_bytes)
    memory = MemorySummary("cpu", peak_bytes, failure=failure, step=step)
    return profile_of({("Net", "forward"): timed(1)}, {"Net": "Net"}, memory=memory)


def test_peaks_that_no_module_explains_give_a_range() -> None:
    straight = {1: with_peak(110), 2: with_peak(120), 4: with_peak(140)}
    fit = largest_batch(straight, 200)
    assert (fit.largest, fit.at_most) == (10, 10)
    fit = largest_batch({**straight, 4: with_peak(240)}, 800)
    assert fit.largest == pytest.approx(((800 - 80) / 10) ** 0.5, abs=1)
    assert fit.at_most == (800 - 0) // 60
    text = text_of(batch_document(fit), width=120)
    assert f"Largest batch within 800.00B: {fit.largest} to {fit.at_most}" in text


def test_a_run_that_ran_out_of_memory_is_called_that() -> None:
    failed = with_peak(200, MemoryFailure(1000, ("Net",), "forward"))
    with pytest.raises(ValueError, match="batch size 2 ran out of memory"):
        largest_batch({1: with_peak(100), 2: failed}, 1000)
