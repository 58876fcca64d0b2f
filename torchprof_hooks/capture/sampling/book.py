"""What is known of the steps of a thread that were looked at on the same level."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Final, NamedTuple

from torchprof_hooks.capture.record.step_counter import StepCounter
from torchprof_hooks.capture.sampling.levels import Level
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.names import OUTSIDE_NAME, UNSAMPLED_NAME

if TYPE_CHECKING:  # it takes long to import, and is needed when all is over
    from torchprof_hooks.capture.functions.flop_count import FlopCount
    from torchprof_hooks.profiles.cells import CellKey
    from torchprof_hooks.profiles.data import ProfileData

_OUTSIDE: CellKey = ((OUTSIDE_NAME,), "outside")


class Pace(NamedTuple):
    """A number of autograd nodes, and how long the program took to make them."""

    nodes: float = 0
    took_ns: float = 0

    def of(self, nodes: int) -> Pace:
        """So many nodes at the same pace."""
        return Pace(nodes, nodes * self.took_ns / self.nodes if self.nodes else 0)

    def then(self, nodes: float, took_ns: float) -> Pace:
        """Both together."""
        return Pace(self.nodes + nodes, self.took_ns + took_ns)


NO_PACE: Final = Pace()


class Unbooked(NamedTuple):
    """What a book does not have yet.

    counter: its steps, with those that are not in its own counter.
    steps: how many of these are not booked.
    took_ns: the time that is not booked, until `end_ns`, or until now.
    """

    counter: StepCounter
    steps: int = 0
    took_ns: int = 0
    end_ns: int | None = None


class Book:
    """Steps and evaluation calls that are looked at on one level.

    steps: how many have ended, of both.
    wall_ns: what they took, with what came after the last one.
    nodes: how many autograd nodes were made in that time.
    unseen: where modules are looked into: how long so many nodes would have taken, had
        only the ends of steps been seen, by the pace of such steps just before.
    counter: counts these steps.
    is_watched: whether calls that are evaluations are told apart now.
    unwatched_ns: the time in which they were not.
    """

    def __init__(self, level: Level, tracker: Tracker, no_memory: str = "") -> None:
        self.level = level
        self.tracker = tracker
        self.steps = 0
        self.wall_ns = self.nodes = self.unwatched_ns = 0
        self.is_watched = True
        self.unseen = NO_PACE
        self.counter = StepCounter()
        self._no_memory = no_memory
        # How long functions were not shown outside of all calls, although the tracker
        # follows them, and since when (see `_now_ns`); 0: they are shown.
        self._hidden_ns = self._hidden_since_ns = 0

    def hide_functions(self) -> None:
        """Functions are not shown from now on."""
        self._hidden_since_ns = self._now_ns()

    def show_functions(self) -> None:
        """Functions are shown again, or the tracker sees nothing any more."""
        self._hidden_ns, self._hidden_since_ns = self._all_hidden_ns(), 0

    def profile(
        self,
        unbooked: Unbooked,
        flop_count: FlopCount | None = None,
        costs_like: Tracker | None = None,
    ) -> ProfileData:
        """All so far, also what is not booked yet.

        costs_like: see `take_snapshot`.
        """
        from torchprof_hooks.capture.snapshot import take_snapshot

        found = take_snapshot(
            self.tracker,
            lambda: self.wall_ns + unbooked.took_ns,
            self._no_memory,
            flop_count,
            unbooked.counter,
            costs_like=costs_like,
            end_ns=unbooked.end_ns,
        )
        return self._without_hidden(found)

    def _without_hidden(self, profile: ProfileData) -> ProfileData:
        """The profile with the time in which functions were hidden on a row of its own:
        those that were seen before say nothing of it."""
        from torchprof_hooks.profiles.cells import add_cell
        from torchprof_hooks.profiles.modules import ModuleInfo
        from torchprof_hooks.profiles.totals import NOTHING, Totals

        outside = profile.cells.get(_OUTSIDE, NOTHING)
        hidden_ns = min(self._all_hidden_ns(), outside.self_ns)
        if hidden_ns <= 0:
            return profile
        cells = dict(profile.cells)
        cells[_OUTSIDE] = replace(outside, self_ns=outside.self_ns - hidden_ns)
        add_cell(cells, ((UNSAMPLED_NAME,), "outside"), Totals(self_ns=hidden_ns))
        infos = {**profile.modules, UNSAMPLED_NAME: ModuleInfo(kind="unsampled")}
        return profile.with_cells(cells, infos)

    def _all_hidden_ns(self) -> int:
        since_ns = self._hidden_since_ns  # once: another thread may read
        return self._hidden_ns + (max(self._now_ns() - since_ns, 0) if since_ns else 0)

    def _now_ns(self) -> int:
        """The time, as if calls and garbage took none."""
        tracker = self.tracker
        others_ns = tracker.entered_ns + tracker.garbage.collections.total_ns
        return perf_counter_ns() - others_ns
