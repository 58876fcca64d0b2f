"""The ends of steps and calls, where nothing else is seen of a program."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Final, NamedTuple

from torchprof_hooks.capture.tracking.tracker import Tracker

#: So many calls that made a graph without a backward pass, or passes without a step of
#: an optimizer, are taken for something else than one training step; or four times as
#: many as in the longest step so far, if that is more.
LEAST_LONG: Final = 1024


class Ends(NamedTuple):
    """What has ended, in this order, where nothing else is seen of a program.

    stamps: when the only optimizer stepped.
    evaluations: how many calls since then were evaluations; all ended by `last_ns`.
    graphs: how many calls after these have made graphs.
    calls: how many calls of modules there were in all.
    """

    stamps: Sequence[int] = ()
    evaluations: int = 0
    last_ns: int = 0
    graphs: int = 0
    calls: int = 0

    @property
    def steps(self) -> int:
        """How many steps and evaluation calls."""
        return len(self.stamps) + self.evaluations


NOTHING_ENDED: Final = Ends()


class UntoldEnds:
    """Counts steps and calls with the cursor of a thread, as long as there is nothing
    to be decided. Telling the detector of each would cost more than seeing it does.
    """

    def __init__(self) -> None:
        self._stamps: list[int] = []
        self._calls_before = 0  # the last of these
        self._tracker: Tracker | None = None
        self._evaluations = 0  # that may be counted, at most

    @property
    def is_counting(self) -> bool:
        """Whether there may be something to tell of."""
        return self._tracker is not None

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
        self._calls_before += LEAST_LONG - tracker.graphs_left
        tracker.graphs_left = LEAST_LONG
        tracker.is_idle = True
        return True

    def read(self) -> Ends:
        """What was counted since the last `take`."""
        tracker = self._tracker
        if tracker is None:
            return NOTHING_ENDED
        evaluations = self._evaluations - tracker.evaluations_left
        graphs = LEAST_LONG - tracker.graphs_left
        calls = self._calls_before + evaluations + graphs
        last_ns = tracker.last_evaluation_ns
        return Ends(self._stamps, evaluations, last_ns, graphs, calls)

    def take(self) -> Ends:
        """What `read` returns. Nothing is counted any more until the next `count`."""
        ends, tracker = self.read(), self._tracker
        self._tracker, self._stamps, self._calls_before = None, [], 0
        if tracker is not None:
            tracker.graphs_left = 0
        return ends
