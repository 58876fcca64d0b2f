"""Time outside of modules in which functions were not looked at any more."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter_ns
from typing import TYPE_CHECKING

from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.names import OUTSIDE_NAME, UNSAMPLED_NAME

if TYPE_CHECKING:  # it takes long to import, and is needed when all is over
    from torchprof_hooks.profiles.cells import CellKey
    from torchprof_hooks.profiles.profile import Profile

_OUTSIDE: CellKey = ((OUTSIDE_NAME,), "outside")


class HiddenFunctions:
    """Adds up how long a tracker that follows functions was shown none, outside of all
    calls: what it has seen of them before says nothing of that time."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._hidden_ns = 0
        self._began_ns = 0  # without what is none of that time; 0: they are shown

    def begin(self) -> None:
        """They are not shown from now on."""
        self._began_ns = self._now_ns()

    def end(self) -> None:
        """They are again, or the tracker sees nothing any more."""
        self._hidden_ns, self._began_ns = self._so_far_ns(), 0

    def left_out_of(self, profile: Profile) -> Profile:
        """The profile of the tracker, with that time on a row of its own."""
        from torchprof_hooks.profiles.cells import add_cell
        from torchprof_hooks.profiles.modules import ModuleInfo
        from torchprof_hooks.profiles.totals import Totals

        outside = profile.cells.get(_OUTSIDE, Totals())
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
