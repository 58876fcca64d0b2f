"""The ends of steps and calls, where nothing else is seen of a program."""

from __future__ import annotations

from time import perf_counter_ns
from typing import NamedTuple

from torchprof_hooks.capture.sampling.steps.step_detector import (
    LEAST_LONG,
    StepDetector,
)
from torchprof_hooks.capture.tracking.tracker import Tracker


class Ends(NamedTuple):
    """What has ended and was not told of yet, in this order.

    stamps: when the only optimizer stepped.
    evaluations: how many calls since then were evaluations; all ended by `last_ns`.
    graphs: how many calls after these have made graphs.
    """

    stamps: list[int]
    evaluations: int
    last_ns: int
    graphs: int

    @property
    def steps(self) -> int:
        """How many steps and evaluation calls."""
        return len(self.stamps) + self.evaluations


class UntoldEnds:
    """Counts steps and calls with the cursor of a thread, as long as there is nothing
    to be decided. Telling the detector of each would cost more than seeing it does.
    """

    def __init__(self) -> None:
        self._told_calls = 0
        self._stamps: list[int] = []
        self._tracker: Tracker | None = None
        self._evaluations = 0  # that may be counted, at most

    @property
    def is_counting(self) -> bool:
        """Whether there may be something to tell of."""
        return self._tracker is not None

    @property
    def calls(self) -> int:
        """How many were counted since the last `forget_calls`."""
        ends = self.read()
        return self._told_calls + ends.evaluations + ends.graphs

    def forget_calls(self) -> None:
        """Count `calls` from 0 again, when all has been told."""
        self._told_calls = 0

    def count(self, tracker: Tracker, evaluations: int, is_idle: bool) -> None:
        """From now on, count the calls that `tracker` is shown.

        evaluations: after so many, the tracker tells of the next one.
        is_idle: whether no training step has begun.
        """
        self._tracker = tracker
        self._evaluations = tracker.evaluations_left = max(evaluations, 0)
        tracker.is_idle = is_idle
        tracker.graphs_left = LEAST_LONG

    def optimizer_stepped(self) -> bool:
        """The only optimizer has stepped. Returns whether the detector may be told of
        it later: not if there are evaluations to be told of before."""
        tracker = self._tracker
        if tracker is None or tracker.evaluations_left != self._evaluations:
            return False
        self._stamps.append(perf_counter_ns())
        self._told_calls += LEAST_LONG - tracker.graphs_left
        tracker.graphs_left = LEAST_LONG
        tracker.is_idle = True
        return True

    def read(self) -> Ends:
        """What was counted since the last `tell`."""
        tracker = self._tracker
        if tracker is None:
            return Ends([], 0, 0, 0)
        return Ends(
            self._stamps,
            self._evaluations - tracker.evaluations_left,
            tracker.last_evaluation_ns,
            LEAST_LONG - tracker.graphs_left,
        )

    def tell(self, detector: StepDetector) -> Ends:
        """Tell `detector` of all that was counted, and count no more until the next
        `count`. Returns what it was told."""
        ends, tracker = self.read(), self._tracker
        self._tracker, self._stamps = None, []
        if tracker is not None:
            tracker.graphs_left = 0
        self._told_calls += ends.evaluations + ends.graphs
        detector.steps_ended(ends.stamps)
        if ends.evaluations:
            detector.evaluations_ended(ends.evaluations, ends.last_ns)
        detector.graphs_made(ends.graphs)
        return ends
