"""What one profile of a thread is made of, and read from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from torchprof_hooks.kernel.module_names import ModuleNames
from torchprof_hooks.kernel.schedule import Blocks, Kind, WallTime
from torchprof_hooks.kernel.step_counter import FirstReading, StepCounter
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.profiles.measured_steps import MeasuredSteps

if TYPE_CHECKING:  # it takes long to import, and is needed when all is over
    from torchprof_hooks.profiles.data import ProfileData

#: Makes a tracker for the running thread. For steps of which nothing is kept, with no
#: observers but those of what interrupts calls.
MakeTracker = Callable[[ModuleNames, bool], Tracker]


class ThreadProfile:
    """What has been measured of one thread for one profile. Any thread may read.

    tracker: what measures.
    counters: of the steps of each kind.
    wall: the time of these.
    """

    def __init__(self, make: MakeTracker, blocks: Blocks) -> None:
        self._blocks = blocks
        self._make, self._names = make, ModuleNames()
        self.tracker = self.make_tracker(measures=True)
        self.counters = {kind: StepCounter() for kind in Kind}
        self.wall = WallTime(blocks)
        self._first: FirstReading | None = None

    def make_tracker(self, measures: bool) -> Tracker:
        """A tracker to which modules have the same names (see `MakeTracker`)."""
        return self._make(self._names, measures)

    def keep_first(self, counted: StepCounter) -> None:
        """The first step has ended: read all sums, as later ones do not show it by
        itself."""
        if self._blocks.kind is Kind.MEASURED:
            tracker = self.tracker
            for observer in tracker.observers:
                observer.first_step_ended()
            wall_ns = self.wall.so_far_ns(Kind.MEASURED)
            self._first = FirstReading(tracker.times(), wall_ns, counted)

    def read(self, counted: StepCounter, end_ns: int | None) -> ProfileData:
        """Everything measured so far; steps that were not are a part of their own.

        counted: the steps of the running kind, so far.
        end_ns: when the time of the thread ended, if that is not now.
        """
        from torchprof_hooks.kernel.snapshot import take_snapshot, with_unmeasured

        kind = self._blocks.kind
        counters = {**self.counters, kind: counted}
        found = take_snapshot(
            self.tracker,
            lambda: self.wall.so_far_ns(Kind.MEASURED, end_ns),
            counters[Kind.MEASURED].copy(),
            first=self._first,
            end_ns=end_ns if kind is Kind.MEASURED else None,
        )
        traced = counters[Kind.TRACED]
        measured = MeasuredSteps(
            tuple(self._blocks.longer),
            traced.steps + traced.evaluations,
            self.wall.so_far_ns(Kind.TRACED, end_ns),
        )
        found = replace(found, measured=measured)
        rest_ns = self.wall.so_far_ns(Kind.COUNTED, end_ns)
        return with_unmeasured(found, rest_ns, counters[Kind.COUNTED].times())
