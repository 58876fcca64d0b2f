"""What steps that were measured tell of others: all that happens in each step; and
the time of which nothing is known, on a row of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from torchprof_hooks.profiles.cells import (
    CellKey,
    Cells,
    Infos,
    add_cell,
    sum_of_own_ns,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    BACKWARD_PHASES,
    ENGINE_NAME,
    OUTSIDE_NAME,
    PROFILER_NAME,
    UNSAMPLED_NAME,
)
from torchprof_hooks.profiles.totals import NOTHING, Totals

#: For time of which nothing is known.
UNSAMPLED_INFOS: Final = {UNSAMPLED_NAME: ModuleInfo(kind="unsampled")}
UNSEEN: Final[CellKey] = ((UNSAMPLED_NAME,), "outside")

_OUTSIDE: Final[CellKey] = ((OUTSIDE_NAME,), "outside")
#: Phases that differ from step to step.
_OF_FEW_STEPS: Final = ("profiler", "compiling", "garbage")
#: Phases that are known even in steps that were only counted.
_FIXED: Final = ("profiler", "garbage")
#: Phases that evaluation calls do not have.
OF_TRAINING: Final = (
    "backward",
    "recompute",
    "optimizer",
    "waiting",
    "communication",
)
#: Phases of a call, in a part of the program that was looked at as a whole.
_INSIDE: Final = ("forward", *BACKWARD_PHASES)


def usual(profile: ProfileData) -> dict[CellKey, Totals]:
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


def usual_ns(profile: ProfileData) -> int:
    """The time of the `usual` cells."""
    return sum_of_own_ns(usual(profile))


def ns_of_few_steps(profile: ProfileData) -> int:
    """The time of phases that differ from step to step, without what measuring took."""
    return sum(
        totals.self_ns
        for (_, phase), totals in profile.cells.items()
        if phase in _OF_FEW_STEPS and phase != "profiler"
    )


def fixed_cells(profile: ProfileData) -> dict[CellKey, Totals]:
    """What Python took to look for garbage, and what measuring took."""
    cells = profile.corrected().cells.items()
    return {key: t for key, t in cells if key[1] in _FIXED and t.self_ns}


def share_in_training(cells: Cells, key: CellKey) -> float | None:
    """How much of a cell belongs to training steps: of the calls of a module, as many
    as had a backward. None if that is not known."""
    path, phase = key
    if phase in OF_TRAINING:
        return 1.0
    if phase != "forward" or not cells[key].calls:
        return None
    backward = cells.get((path, "backward"), NOTHING)
    return min(backward.calls / cells[key].calls, 1.0)


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
        round(totals.flops * calls),
        totals.overhead_ns,
        device_overhead_ns=totals.device_overhead_ns,
    )


def with_rest(
    counted: ProfileData, cells: dict[CellKey, Totals], infos: Infos
) -> ProfileData:
    """`counted` with these cells and descriptions. What they lack of its wall time is
    booked as not measured, to the nanosecond."""
    rest_ns = counted.wall_ns - sum_of_own_ns(cells)
    largest = max(cells, key=lambda key: cells[key].self_ns, default=UNSEEN)
    if cells and rest_ns < -min(len(cells), cells[largest].self_ns):
        cells = _cut(cells, counted.wall_ns)
        rest_ns = counted.wall_ns - sum_of_own_ns(cells)
    key = largest if rest_ns <= len(cells) else UNSEEN  # rounded
    known = cells.get(key, NOTHING)
    cells[key] = replace(known, self_ns=known.self_ns + rest_ns)
    modules = {**counted.modules, **infos, **UNSAMPLED_INFOS}
    if any(path == (PROFILER_NAME,) for path, _ in cells):
        modules[PROFILER_NAME] = ModuleInfo(kind="profiler")
    return counted.with_cells(cells, modules)


def _cut(cells: Mapping[CellKey, Totals], most_ns: int) -> dict[CellKey, Totals]:
    """Cells whose times, which are too long together, are cut to `most_ns` in sum, in
    the same proportions."""
    all_ns = sum_of_own_ns(cells)
    return {
        key: replace(totals, self_ns=totals.self_ns * most_ns // all_ns)
        for key, totals in cells.items()
    }


def not_measured_inside(profile: ProfileData) -> ProfileData:
    """The same profile with the time inside of modules and of backward on a row of its
    own. Calls stay where they are."""
    cells: dict[CellKey, Totals] = {}

    for (path, phase), totals in profile.cells.items():
        if phase not in _INSIDE:
            add_cell(cells, (path, phase), totals)
            continue
        around = path[:-1] if path[-1] in (BACKWARD_NAME, ENGINE_NAME) else path
        add_cell(cells, (path, phase), totals.without_time())
        inside = (*around, UNSAMPLED_NAME)
        add_cell(cells, (inside, phase), totals.without_calls())
    infos = {**profile.modules, **UNSAMPLED_INFOS}
    return profile.with_cells(cells, infos)
