"""What steps that were looked into tell of others: all that happens in each step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from torchprof_hooks.profiles.cells import CellKey, sum_of_own_ns
from torchprof_hooks.profiles.names import OUTSIDE_NAME
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.totals import Totals

_OUTSIDE: Final[CellKey] = ((OUTSIDE_NAME,), "outside")
#: Phases that differ from step to step.
_OF_FEW_STEPS: Final = ("profiler", "compiling", "garbage")
#: Phases that are known even in steps that were only counted.
_FIXED: Final = ("profiler", "garbage")


def usual(profile: Profile) -> dict[CellKey, Totals]:
    """The cells of a profile, without phases that differ from step to step, and without
    what came after the last step, outside of modules: saving the model, for example."""
    cells = {
        key: totals
        for key, totals in profile.cells.items()
        if key[1] not in _OF_FEW_STEPS
    }
    times, outside = profile.step_times, cells.get(_OUTSIDE)
    in_steps_ns = times.steps_ns + times.evaluation_ns
    if outside is not None and in_steps_ns:
        after_ns = min(max(profile.wall_ns - in_steps_ns, 0), outside.self_ns)
        cells[_OUTSIDE] = replace(outside, self_ns=outside.self_ns - after_ns)
    return cells


def usual_ns(profile: Profile) -> int:
    """The time of the `usual` cells."""
    return sum_of_own_ns(usual(profile))


def ns_of_few_steps(profile: Profile) -> int:
    """The time of phases that differ from step to step, without what measuring took."""
    return sum(
        totals.self_ns
        for (_, phase), totals in profile.cells.items()
        if phase in _OF_FEW_STEPS and phase != "profiler"
    )


def fixed_cells(profile: Profile) -> dict[CellKey, Totals]:
    """What Python took to look for garbage, and what measuring took."""
    cells = profile.corrected().cells.items()
    return {key: t for key, t in cells if key[1] in _FIXED and t.self_ns}


def scaled(totals: Totals, time: float, calls: float) -> Totals:
    """Totals of `calls` times as many calls, which took `time` times as long together.
    How far calls differ from their mean stays the same, in relation to the mean."""
    squares = time**2 / calls if calls else 0.0
    return Totals(  # every cell needs it, and `replace` takes three times as long
        round(totals.calls * calls),
        round(totals.self_ns * time),
        totals.cumulative_ns,
        totals.min_ns,
        totals.max_ns,
        round(totals.duration_ns * time),
        round(totals.squares_ns2 * squares),
        round(totals.device_self_ns * time),
        totals.device_cumulative_ns,
        totals.memory.scaled(calls),
        totals.memory_cumulative,
        round(totals.flops * calls),  # as the bytes that are moved
        totals.overhead_ns,
        traffic=totals.traffic.scaled(calls),
        device_overhead_ns=totals.device_overhead_ns,
    )


def cut(cells: Mapping[CellKey, Totals], most_ns: int) -> dict[CellKey, Totals]:
    """Cells whose times, which are too long together, are cut to `most_ns` in sum, in
    the same proportions."""
    all_ns = sum_of_own_ns(cells)
    return {
        key: replace(totals, self_ns=totals.self_ns * most_ns // all_ns)
        for key, totals in cells.items()
    }
