"""Keeps what was booked in the slowest training steps of a tracker."""

from __future__ import annotations

from heapq import heappush, heappushpop
from typing import Any, NamedTuple

from torchprof_hooks.capture.core.span_log import Int64s
from torchprof_hooks.profiles.step_times import MOST_SLOW


class SlowReading(NamedTuple):
    """What was booked in a step: nanoseconds by the code of the site, of calls that
    have ended in it."""

    duration_ns: int
    number: int
    booked_ns: Int64s

    def __lt__(self, other: SlowReading) -> bool:  # type: ignore[override]
        """In a heap, the shortest step comes first."""
        return self.duration_ns < other.duration_ns


class SlowSteps:
    """Is told of the end of each step that may be slow; the log knows of the others.

    readings: of the longest steps among these. Whether they are slow will be known in
        the end: what is usual is not, before some steps have ended.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self.readings: list[SlowReading] = []  # a heap

    def step_ended(self, duration_ns: int, number: int) -> None:
        """A step has ended that is not a usual one.

        number: that of the training step; 0: it is no later one, or there were several.
        """
        if number:
            self._keep(duration_ns, number)
        self._log.end_step(0)

    def _keep(self, duration_ns: int, number: int) -> None:
        is_full = len(self.readings) >= MOST_SLOW
        if is_full and duration_ns <= self.readings[0].duration_ns:
            return
        found = SlowReading(duration_ns, number, self._log.of_step_ns)
        (heappushpop if is_full else heappush)(self.readings, found)
