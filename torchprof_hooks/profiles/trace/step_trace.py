"""One traced step as plain data: modules, operations, backward passes, memory; and
where the host was at which time.

Times are nanoseconds since the Unix epoch.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Final, NamedTuple

from torchprof_hooks.profiles.files.fields import Count
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
    shape: tuple[Count, ...]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"

    @property
    def size_bytes(self) -> int:
        """The size of its elements: names of torch's dtypes contain their bits, and
        each element takes at least a byte."""
        bits = re.search(r"\d+", self.dtype)
        return prod(self.shape) * max(1, int(bits[0]) // 8 if bits else 1)


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
    node_start_ns: when the node began, after the hooks on it.
    views: blocks of which it returned views, having changed nothing; each with the
        first tensor of it that was taken afterwards and is not the view's base: most
        likely the view. None if there was none.
    """

    name: str
    thread: int
    start_ns: int
    end_ns: int
    takes: dict[int, TensorType] = field(default_factory=dict)
    writes: dict[int, None] = field(default_factory=dict)
    node: int | None = None
    gradients: set[int] = field(default_factory=set)
    node_start_ns: int | None = None
    views: dict[int, TensorType | None] = field(default_factory=dict)


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
    devices: on which device each block is that was there before.
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
    devices: dict[int, str] = field(default_factory=dict)
    activities: list[DeviceActivity] = field(default_factory=list)


class Place(NamedTuple):
    """A module, or what else reports have rows for, in one phase."""

    module: str
    phase: Phase


OUTSIDE: Final = Place(OUTSIDE_NAME, "outside")


def find_places(trace: StepTrace) -> list[Place]:
    """For each operation, the innermost module that was running when it began.

    A module's backward begins and ends in hooks on autograd nodes. The operation of a
    node includes these hooks, so what counts for it is when the node itself began. What
    other threads do, except for nodes, no module has asked for.
    """
    places = Places(trace.modules)

    def place(operation: Operation) -> Place:
        if operation.thread != trace.thread and operation.node is None:
            return OUTSIDE
        node_ns = operation.node_start_ns
        return places.at(operation.start_ns if node_ns is None else node_ns)

    return [place(operation) for operation in trace.operations]


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
