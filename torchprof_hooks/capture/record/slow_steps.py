"""Keeps what was booked in the slowest training steps of a tracker."""

from __future__ import annotations

from collections import Counter
from heapq import heappush, heappushpop
from typing import Any, NamedTuple

from torchprof_hooks.capture.core.span_log import Int64s
from torchprof_hooks.capture.record.garbage_log import GarbageLog
from torchprof_hooks.profiles.step_times import MOST_SLOW


class SlowReading(NamedTuple):
    """What was booked in a step: nanoseconds by the code of the site, of calls that
    have ended in it, and of collections of garbage."""

    duration_ns: int
    number: int
    booked_ns: Int64s
    garbage_ns: Counter[int]

    def __lt__(self, other: SlowReading) -> bool:  # type: ignore[override]
        """In a heap, the shortest step comes first."""
        return self.duration_ns < other.duration_ns


class SlowSteps:
    """Is told of the end of each step that may be slow, or in which garbage was
    collected; the log knows of the others.

    readings: of the longest steps among these. Whether they are slow will be known in
        the end: what is usual is not, before some steps have ended.
    usual_garbage_ns: what collections took of usual steps, by the code of the site.
    collections: of garbage, when the last step ended.
    """

    def __init__(self, log: Any, garbage: GarbageLog) -> None:
        self._log = log
        self._garbage = garbage
        self.readings: list[SlowReading] = []  # a heap
        self.usual_garbage_ns = Counter[int]()
        self.collections = garbage.collections
        self._garbage_before_ns = Counter[int]()

    def step_ended(self, duration_ns: int, number: int, is_usual: bool) -> None:
        """A step has ended.

        number: that of the training step; 0: it is no later one, or there were several.
        """
        garbage_ns = self._new_garbage_ns()
        if is_usual:
            self.usual_garbage_ns.update(garbage_ns)
        elif number:
            self._keep(duration_ns, number, garbage_ns)
        self._log.end_step(duration_ns if is_usual else 0)

    def _keep(self, duration_ns: int, number: int, garbage_ns: Counter[int]) -> None:
        is_full = len(self.readings) >= MOST_SLOW
        if is_full and duration_ns <= self.readings[0].duration_ns:
            return
        found = SlowReading(duration_ns, number, self._log.of_step_ns, garbage_ns)
        (heappushpop if is_full else heappush)(self.readings, found)

    def _new_garbage_ns(self) -> Counter[int]:
        """What collections took since the last step, by the code of the site."""
        if self._garbage.collections is self.collections:
            return Counter()
        self.collections = self._garbage.collections
        now_ns, before_ns = Counter(self._garbage.by_site), self._garbage_before_ns
        self._garbage_before_ns = now_ns
        new_ns = {code: ns - before_ns[code] for code, ns in now_ns.items()}
        return Counter({code: ns for code, ns in new_ns.items() if ns})
