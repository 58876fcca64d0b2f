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
from torchprof_hooks import MemorySummary, link_hooks

pytestmark = pytest.mark.gpu

#: Blocks of these sizes are handed out as they are asked for: they are multiples of
#: 512 bytes, and not larger than 1 MiB.
SHAPE = 256, 256
BYTES = 4 * 256 * 256
#: Elements that take more than cuBLAS does for its work, which torch 2.15 gives back.
BEYOND_WORKSPACES = 2**26


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


def test_the_peak_is_the_allocators() -> None:
    training = Training()
    training.step()
    torch.cuda.reset_peak_memory_stats()
    with torchprof_hooks.profile(memory=True) as prof:
        for _ in range(3):
            training.step()
    memory = prof.profile.memory
    assert memory is not None
    assert memory.source == f"cuda:{torch.cuda.current_device()}"
    assert memory.peak_bytes == torch.cuda.max_memory_allocated()


class Layers(nn.Module):
    """ReLU's result is kept for its backward, and for that of the next layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(*SHAPE, bias=False)
        self.relu = nn.ReLU()
        self.b = nn.Linear(*SHAPE, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(self.relu(self.a(x)))
        return out


def owners(memory: MemorySummary, kind: str) -> dict[tuple[str, str], int]:
    return {(h.owner, h.phase): h.bytes for h in memory.at_peak if h.kind == kind}


@pytest.mark.parametrize("peaks_after", ["forward", "step"])
def test_who_holds_the_memory_at_the_peak(peaks_after: str) -> None:
    model, x = Layers().to(DEVICE), torch.ones(SHAPE, device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(x).sum()
        if peaks_after == "forward":
            torch.empty(BEYOND_WORKSPACES, device=DEVICE)
        loss.backward()
        optimizer.step()
        del loss
        if peaks_after == "step":
            torch.empty(BEYOND_WORKSPACES, device=DEVICE)

    step()  # what is made once is made
    torch.cuda.reset_peak_memory_stats()
    with torchprof_hooks.profile(memory=True) as prof:
        for _ in range(3):
            step()
    memory = prof.profile.memory
    assert memory is not None
    assert prof.profile.not_measured == ()
    assert memory.peak_bytes == torch.cuda.max_memory_allocated()
    assert sum(held.bytes for held in memory.at_peak) == memory.peak_bytes
    layers = "Layers.a", "Layers.b"
    assert owners(memory, "parameter") == {(one, "outside"): BYTES for one in layers}
    assert owners(memory, "optimizer state") == {
        ("(optimizer) SGD", "optimizer"): 2 * BYTES
    }
    kept = owners(memory, "activation")
    gradients = owners(memory, "gradient")
    if peaks_after == "forward":
        assert kept["Layers.relu", "forward"] == BYTES
        assert gradients == {}
    else:
        assert kept == {}
        assert gradients == {(one, "backward"): BYTES for one in layers}


def test_who_held_the_memory_when_it_ran_out() -> None:
    kept = torch.ones(SHAPE, device=DEVICE)
    with (
        pytest.raises(torch.OutOfMemoryError),
        torchprof_hooks.profile(memory=True) as prof,
    ):
        torch.empty(2**50, dtype=torch.uint8, device=DEVICE)
    memory = prof.profile.memory
    assert memory is not None
    assert memory.failure is not None
    assert memory.failure.requested_bytes == 2**50
    assert memory.failure.held_bytes == torch.cuda.memory_allocated() >= kept.nbytes


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
