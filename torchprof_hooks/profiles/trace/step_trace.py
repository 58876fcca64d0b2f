"""One traced step as plain data: modules, operations, backward passes, memory; and
where the host was at which time.

Times are nanoseconds since the Unix epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from torchprof_hooks.profiles.names import OUTSIDE_NAME, Phase

#: `Operation.node` of the autograd nodes that accumulate into leaves: torch numbers all
#: others.
LEAF_NODE: Final = -1


class ModuleSpan(NamedTuple):
    """One call of a module (or optimizer, or a whole backward pass) in one phase.

    name: its qualified path, as in the reports.
    kind: its class, "" if it is not a module.
    """

    name: str
    kind: str
    phase: Phase
    start_ns: int
    end_ns: int


class TensorType(NamedTuple):
    """Data type and shape of a tensor: "float32", (2, 3)."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclass(slots=True)
class Operation:
    """An outermost operation, with everything inside of it.

    Memory is known by blocks. A block lasts from its allocation until it is freed;
    several tensors may be views of it.

    thread: the system's number of the thread that ran it.
    takes: blocks that were there before, each as the first tensor of it that was taken.
    writes: blocks that it allocated or changed.
    node: the number of the autograd node that it ran, None if it did not run one.
    gradients: blocks of the gradients that the node was given.
    """

    name: str
    thread: int
    start_ns: int
    end_ns: int
    takes: dict[int, TensorType] = field(default_factory=dict)
    writes: dict[int, None] = field(default_factory=dict)
    node: int | None = None
    gradients: set[int] = field(default_factory=set)


class GraphPass(NamedTuple):
    """A backward pass, and the edges of its graph: numbers of autograd nodes, from and
    to (`LEAF_NODE` for those that accumulate into leaves)."""

    start_ns: int
    end_ns: int
    edges: list[tuple[int, int]]


class Allocation(NamedTuple):
    """Memory that was allocated, or freed: then `size_bytes` is negative.

    total_bytes: what was allocated on the device after it, as the allocator counts.
    """

    block: int
    time_ns: int
    size_bytes: int
    device: str
    total_bytes: int


class DeviceActivity(NamedTuple):
    """A kernel, a copy or the like that a device has run.

    device: its name, "cuda:0".
    launch_ns: when the host began to launch it, None if that was not recorded.
    """

    device: str
    start_ns: int
    end_ns: int
    launch_ns: int | None


@dataclass(slots=True)
class StepTrace:
    """One traced step, as the thread that ran it saw it.

    step: its number, after it.
    process, thread: the system's numbers of who ran it.
    modules: of calls inside each other, the outer one first.
    operations: in the order in which they began.
    passes: backward passes; one may run inside of another.
    tensors: the tensor type of each block that was seen as a tensor.
    activities: what devices have run, in no order, also before and after the step.
    """

    step: int
    process: int
    thread: int
    start_ns: int
    end_ns: int
    modules: list[ModuleSpan] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    passes: list[GraphPass] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    tensors: dict[int, TensorType] = field(default_factory=dict)
    activities: list[DeviceActivity] = field(default_factory=list)


class Place(NamedTuple):
    """A module, or what else reports have rows for, in one phase."""

    module: str
    phase: Phase


OUTSIDE: Final = Place(OUTSIDE_NAME, "outside")


class Places:
    """Where the host was, at any time."""

    def __init__(self, modules: Iterable[ModuleSpan]) -> None:
        changes = sorted(_changes(modules), key=lambda change: change[0])
        self._times = [time_ns for time_ns, _ in changes]
        self._places = [place for _, place in changes]

    def at(self, now_ns: int) -> Place:
        """The place at one moment."""
        number = bisect_right(self._times, now_ns)
        return self._places[number - 1] if number else OUTSIDE

    def during(self, begin_ns: int, end_ns: int) -> Iterator[tuple[Place, int]]:
        """The places from one moment to another, and how long each lasted."""
        if begin_ns >= end_ns:
            return
        first = bisect_right(self._times, begin_ns)
        last = bisect_right(self._times, end_ns)
        bounds = [begin_ns, *self._times[first:last], end_ns]
        for from_ns, to_ns in pairwise(bounds):
            yield self.at(from_ns), to_ns - from_ns


def _changes(modules: Iterable[ModuleSpan]) -> Iterator[tuple[int, Place]]:
    """When the innermost module changes, and to what."""
    running: list[ModuleSpan] = []
    for span in sorted(modules, key=lambda span: (span.start_ns, -span.end_ns)):
        yield from _ended(running, span.start_ns)
        running.append(span)
        yield span.start_ns, Place(span.name, span.phase)
    if running:
        yield from _ended(running, max(span.end_ns for span in running))


def _ended(running: list[ModuleSpan], now_ns: int) -> Iterator[tuple[int, Place]]:
    """The changes at the ends of calls that are over."""
    while running and running[-1].end_ns <= now_ns:
        ended_ns = running.pop().end_ns
        while running and running[-1].end_ns <= ended_ns:
            running.pop()
        outer = Place(running[-1].name, running[-1].phase) if running else OUTSIDE
        yield ended_ns, outer
