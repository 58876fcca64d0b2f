"""Memory, next to the allocator's own record of what it handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.devices.gpu.cuda import DEVICE, MEASURERS, Training, totals
from torchprof_hooks import link_hooks

pytestmark = pytest.mark.gpu

#: Blocks of these sizes are handed out as they are asked for: they are multiples of
#: 512 bytes, and not larger than 1 MiB.
SHAPE = 256, 256
BYTES = 4 * 256 * 256


class Elementwise(nn.Module):
    """Makes three blocks, of which one is left."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x * 2) + 1).relu()


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Elementwise(), Elementwise()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(x)).exp()
        return result


def allocated() -> int:
    """What the allocator has handed out so far."""
    used: int = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
    return used


@contextmanager
def recorded_sizes() -> Iterator[list[int]]:
    """The sizes of the blocks that were asked for, once it is over."""
    record: Any = torch.cuda.memory._record_memory_history
    sizes: list[int] = []
    record("all", context=None, stacks="python", max_entries=10_000)
    try:
        before = len(_entries())
        yield sizes
        new = _entries()[before:]
        sizes += [entry["size"] for entry in new if entry["action"] == "alloc"]
    finally:
        record(None)


def _entries() -> list[dict[str, Any]]:
    snapshot: Any = torch.cuda.memory._snapshot()
    entries: list[dict[str, Any]] = snapshot["device_traces"][
        torch.cuda.current_device()
    ]
    return entries


def test_used_bytes_are_those_that_the_allocator_recorded() -> None:
    model, x = Twice(), torch.ones(SHAPE, device=DEVICE)
    with torchprof_hooks.profile(memory=True) as prof, recorded_sizes() as sizes:
        model(x)
    assert sizes == [BYTES] * 7
    assert totals(prof.profile, "Twice").memory_cumulative.used_bytes == sum(sizes)
    for name in ("Twice.first", "Twice.second"):
        assert totals(prof.profile, name).memory.used_bytes == 3 * BYTES
        assert totals(prof.profile, name).memory.retained_bytes == BYTES
    assert totals(prof.profile, "Twice").memory.used_bytes == BYTES


def test_used_bytes_of_backward_are_those_that_the_allocator_counted() -> None:
    model, x = Twice(), torch.ones(SHAPE, device=DEVICE, requires_grad=True)
    with torchprof_hooks.profile(memory=True) as prof:
        y = model(x).sum()
        gradient = torch.ones_like(y)  # which torch would make before the pass begins
        before = allocated()
        y.backward(gradient)
        used_bytes = allocated() - before
    found = [row.phases["backward"].memory.used_bytes for row in prof.profile.rows()]
    assert sum(found) == used_bytes
    assert totals(prof.profile, "Twice.first", "backward").memory.used_bytes > 0


def test_hooks_count_the_same() -> None:
    model, x = Twice(), torch.ones(SHAPE, device=DEVICE)
    before = allocated()
    with link_hooks.MemoryProfileHook() as hook:
        model(x)
    assert hook.total_used_bytes() == allocated() - before == 7 * BYTES


def peak_of_training(around: AbstractContextManager[Any]) -> int:
    """How far training rises above where it begins."""
    training = Training()
    training.step()
    torch.cuda.synchronize()
    level = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with around:
        for _ in range(3):
            training.step()
    return torch.cuda.max_memory_allocated() - level


@pytest.mark.parametrize("measure", MEASURERS.values(), ids=MEASURERS)
def test_measuring_takes_no_memory_of_the_device(
    measure: Callable[[], AbstractContextManager[Any]],
) -> None:
    assert peak_of_training(measure()) == peak_of_training(nullcontext())
