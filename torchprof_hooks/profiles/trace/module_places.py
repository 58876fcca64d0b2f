"""Where the host was in a traced step: in which module, at which time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from torchprof_hooks.profiles.names import OUTSIDE_NAME, Phase
from torchprof_hooks.profiles.trace.step_trace import ModuleSpan, Operation, StepTrace


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
