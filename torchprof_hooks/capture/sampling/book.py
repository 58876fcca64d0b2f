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
    from torchprof_hooks.profiles.profile import Profile

_OUTSIDE: CellKey = ((OUTSIDE_NAME,), "outside")


class HiddenFunctions:
    """Adds up how long a tracker that follows functions was shown none, outside of all
    calls: the functions that it saw before say nothing of that time."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._hidden_ns = 0
        self._began_ns = 0  # see `_now_ns`; 0: functions are shown

    def begin(self) -> None:
        """Functions are not shown from now on."""
        self._began_ns = self._now_ns()

    def end(self) -> None:
        """Functions are shown again, or the tracker sees nothing any more."""
        self._hidden_ns, self._began_ns = self._so_far_ns(), 0

    def left_out_of(self, profile: Profile) -> Profile:
        """The profile of the tracker, with that time on a row of its own."""
        from torchprof_hooks.profiles.cells import add_cell
        from torchprof_hooks.profiles.modules import ModuleInfo
        from torchprof_hooks.profiles.totals import NOTHING, Totals

        outside = profile.cells.get(_OUTSIDE, NOTHING)
        hidden_ns = min(self._so_far_ns(), outside.self_ns)
        if hidden_ns <= 0:
            return profile
        cells = dict(profile.cells)
        cells[_OUTSIDE] = replace(outside, self_ns=outside.self_ns - hidden_ns)
        add_cell(cells, ((UNSAMPLED_NAME,), "outside"), Totals(self_ns=hidden_ns))
        infos = {**profile.modules, UNSAMPLED_NAME: ModuleInfo(kind="unsampled")}
        return replace(profile, cells=cells, modules=infos)

    def _so_far_ns(self) -> int:
        began_ns = self._began_ns  # once: another thread may read
        return self._hidden_ns + (max(self._now_ns() - began_ns, 0) if began_ns else 0)

    def _now_ns(self) -> int:
        """The time, as if calls and garbage took none."""
        tracker = self._tracker
        others_ns = tracker.entered_ns + tracker.garbage.collections.total_ns
        return perf_counter_ns() - others_ns


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
    hidden: how long functions were not looked at although they should be.
    """

    def __init__(self, level: Level, tracker: Tracker, no_memory: str = "") -> None:
        self.level = level
        self.tracker = tracker
        self.steps = 0
        self.wall_ns = self.nodes = self.unwatched_ns = 0
        self.is_watched = True
        self.unseen = NO_PACE
        self.counter = StepCounter()
        self.hidden = HiddenFunctions(tracker)
        self._no_memory = no_memory

    def profile(
        self,
        running_ns: int,
        counted: StepCounter,
        flop_count: FlopCount | None = None,
        costs_like: Tracker | None = None,
        end_ns: int | None = None,
    ) -> Profile:
        """All so far, and `running_ns` that are not booked yet.

        counted: the steps, with those that are not in `counter` yet.
        costs_like, end_ns: see `take_snapshot`.
        """
        from torchprof_hooks.capture.snapshot import take_snapshot

        found = take_snapshot(
            self.tracker,
            lambda: self.wall_ns + running_ns,
            self._no_memory,
            flop_count,
            counted,
            costs_like=costs_like,
            end_ns=end_ns,
        )
        return self.hidden.left_out_of(found)
