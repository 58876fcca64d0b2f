"""Parts of a profile: the start-up, until the first training step has ended; the loop
after it; and the whole without the time that measuring took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isqrt
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from torchprof_hooks.profiles.cells import (
    CellKey,
    Cells,
    all_cells,
    overhead_ns,
    sum_of_own_ns,
    without_overhead,
)
from torchprof_hooks.profiles.files.fields import Count
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import PROFILER_NAME
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.totals import NOTHING, Totals

if TYPE_CHECKING:
    from torchprof_hooks.profiles.profile import Profile

#: Fields of `Totals` that are never larger in a part of a run than in all of it.
_SUMS: Final = (
    "calls",
    "self_ns",
    "duration_ns",
    "squares_ns2",
    "flops",
    "overhead_ns",
    "device_overhead_ns",
)


@dataclass(frozen=True, slots=True)
class FirstSteps:
    """The first training step of each run, with what came before it. Only where a torch
    optimizer has ended it is the end of a first step known.

    steps: how many first steps there are.
    cells: like `Profile.cells`, in which these numbers are included.
    """

    steps: Count = 0
    cells: Mapping[CellKey, Totals] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", MappingProxyType(dict(self.cells)))

    def __reduce__(self) -> tuple[Any, ...]:
        return FirstSteps, (self.steps, dict(self.cells))

    def merge(self, other: FirstSteps) -> FirstSteps:
        """The first steps of both."""
        cells = all_cells(self.cells, other.cells)
        return FirstSteps(self.steps + other.steps, cells)

    def broken_promise(self) -> str:
        """What is wrong with the values taken together, "" if nothing."""
        return "" if self.steps or not self.cells else "has cells, but no steps"


#: Where no first steps are known.
NO_FIRST_STEPS: Final = FirstSteps()


def more_than_all(first: FirstSteps, cells: Cells, steps: int) -> str:
    """Why `first` cannot be a part of this many steps with these cells, "" if it
    can."""
    if first.steps > steps:
        return f"has {first.steps} first steps among {steps}"
    for key, totals in first.cells.items():
        if key not in cells or totals != within(totals, cells[key]):
            path, phase = key
            return f"has more in first steps than in all, for {'.'.join(path)}, {phase}"
    return ""


def within(part: Totals, whole: Totals) -> Totals:
    """`part`, with each number that is above that of `whole` cut to it."""
    sums = {name: (getattr(part, name), getattr(whole, name)) for name in _SUMS}
    if all(some <= most for some, most in sums.values()):
        return part
    least = {name: min(each) for name, each in sums.items()}
    return replace(part, **least)


class Parted:
    """Base of `Profile`: its parts."""

    __slots__ = ()

    @property
    def start_up(self) -> Profile:
        """What was measured until the first training step of each run had ended. Empty
        if that end is not known: without torch optimizers, where `max_overhead` leaves
        the first step out, and in older files."""
        profile = self._reported_profile()
        times = profile.step_times
        first = StepTimes(times.first_steps, times.first_ns)
        return _part(profile, profile.first.cells, profile.first.steps, first)

    @property
    def loop(self) -> Profile:
        """What was measured after `start_up`. The shortest and the longest call are
        known for the whole run only: they are given here as far as they can be right
        (see `_after`)."""
        profile = self._reported_profile()
        first = profile.first
        if not first.steps:
            return profile
        left = {
            key: _after(totals, first.cells.get(key))
            for key, totals in profile.cells.items()
        }
        cells = {key: totals for key, totals in left.items() if totals != NOTHING}
        later = profile.step_times._replace(first_steps=0, first_ns=0)
        return _part(profile, cells, profile.steps - first.steps, later)

    def corrected(self) -> Profile:
        """The same profile without the time that measuring took in each row, as far as
        that is known (see `Totals.overhead_ns`): own and cumulative times are lower,
        those of a device as far as it waited for the host, the row "(profiler)" is
        higher. Durations of single calls stay as they were measured.
        """
        profile = self._reported_profile()
        infos = {PROFILER_NAME: ModuleInfo(kind="profiler"), **profile.modules}
        cells = without_overhead(profile.cells)
        of_first = without_overhead(profile.first.cells)
        kept = {
            key: within(t, cells[key]) for key, t in of_first.items() if key in cells
        }
        first = FirstSteps(profile.first.steps, kept)
        return replace(profile, cells=cells, modules=infos, first=first)

    def _reported_profile(self) -> Profile:
        raise NotImplementedError


def _part(profile: Profile, cells: Cells, steps: int, times: StepTimes) -> Profile:
    calls = sum(totals.calls for totals in cells.values())
    all_calls = max(sum(totals.calls for totals in profile.cells.values()), 1)
    return replace(
        profile,
        cells=cells,
        wall_ns=sum_of_own_ns(cells),
        steps=steps,
        step_times=times,
        items=profile.items * steps // max(profile.steps, 1),
        device_asked=profile.device_asked * calls // all_calls,
        device_waits=profile.device_waits * calls // all_calls,
        overhead_ns=sum(map(overhead_ns, cells.items())),
        first=NO_FIRST_STEPS,
    )


def _after(whole: Totals, first: Totals | None) -> Totals:
    """`whole` without `first`. The longest call of all mostly was a first one, so the
    longest that is left is bounded: by the sum of durations, less the shortest one for
    each other call, and by the sum of squares."""
    if first is None:
        return whole
    calls = whole.calls - first.calls
    duration_ns = whole.duration_ns - first.duration_ns
    squares_ns2 = whole.squares_ns2 - first.squares_ns2
    min_ns = whole.min_ns if calls else 0
    most_ns = min(duration_ns - (calls - 1) * min_ns, isqrt(max(squares_ns2, 0)))
    memory = whole.memory.without(first.memory)
    return Totals(
        calls=calls,
        self_ns=whole.self_ns - first.self_ns,
        min_ns=min_ns,
        max_ns=max(min(whole.max_ns, most_ns), min_ns) if calls else 0,
        duration_ns=duration_ns,
        squares_ns2=squares_ns2,
        device_self_ns=whole.device_self_ns - first.device_self_ns,
        memory=memory if calls else memory.with_peak(0),
        flops=whole.flops - first.flops,
        overhead_ns=whole.overhead_ns - first.overhead_ns,
        device_overhead_ns=whole.device_overhead_ns - first.device_overhead_ns,
    )
