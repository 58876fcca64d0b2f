"""Where the host was in a traced step, at any time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from torchprof_hooks.profiles.cells import Chain
from torchprof_hooks.profiles.names import OUTSIDE_NAME, Phase
from torchprof_hooks.profiles.trace.step_trace import ModuleSpan


class HostPlace(NamedTuple):
    """A module (or optimizer, data loading, ...) in one phase.

    path: the chain of calls that leads there, its own name last.
    """

    path: Chain
    phase: Phase

    @property
    def module(self) -> str:
        """The name of the module."""
        return self.path[-1]


def named_place(name: str) -> HostPlace:
    """A place that is not in a module."""
    return HostPlace((name,), "outside")


OUTSIDE: Final = named_place(OUTSIDE_NAME)

#: Name of the row for what was launched by a call of the host that was not recorded.
UNSEEN_NAME: Final = "(launch not recorded)"


class HostPlaces:
    """Where the host was: in the innermost module that was running, at any time."""

    def __init__(self, modules: Iterable[ModuleSpan]) -> None:
        self._times: list[int] = []  # when the innermost module changed
        self._places: list[HostPlace] = []  # what it changed to
        running: list[ModuleSpan] = []
        for span in sorted(modules, key=lambda span: (span.start_ns, -span.end_ns)):
            self._leave(running, span.start_ns)
            running.append(span)
            self._enter(span.start_ns, running)
        self._leave(running, max((span.end_ns for span in running), default=0))

    def at(self, time_ns: int) -> HostPlace:
        """The place at one moment."""
        number = bisect_right(self._times, time_ns)
        return self._places[number - 1] if number else OUTSIDE

    def during(self, begin_ns: int, end_ns: int) -> Iterator[tuple[HostPlace, int]]:
        """The places from one moment to another, and how long each lasted."""
        if begin_ns >= end_ns:
            return
        first = bisect_right(self._times, begin_ns)
        last = bisect_right(self._times, end_ns)
        places = [self.at(begin_ns), *self._places[first:last]]
        bounds = pairwise([begin_ns, *self._times[first:last], end_ns])
        for place, (from_ns, to_ns) in zip(places, bounds, strict=True):
            yield place, to_ns - from_ns

    def _leave(self, running: list[ModuleSpan], now_ns: int) -> None:
        """Leave the calls that are over. A call that ends after the call around it
        keeps that open for as long."""
        ended_ns = 0
        while running and running[-1].end_ns <= now_ns:
            ended_ns = max(ended_ns, running.pop().end_ns)
            self._enter(ended_ns, running)

    def _enter(self, now_ns: int, running: list[ModuleSpan]) -> None:
        inner = running[-1] if running else None
        self._times.append(now_ns)
        self._places.append(
            HostPlace(inner.path or (inner.name,), inner.phase) if inner else OUTSIDE
        )
