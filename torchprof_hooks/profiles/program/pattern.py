"""What steps that were seen show of others: all that does not come once."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.names import OUTSIDE_NAME
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.step_times import (
    Bucket,
    StepTimes,
    bucket_of,
    sorted_buckets,
)
from torchprof_hooks.profiles.totals import Totals

_OUTSIDE: Final[CellKey] = ((OUTSIDE_NAME,), "outside")
#: Phases that differ from step to step.
_OF_FEW_STEPS: Final = ("profiler", "compiling", "garbage")
#: A step that takes so many times as long as nine of ten does something else, such as
#: starting the workers of a loader or writing a checkpoint; one with more work, less.
FAR_LONGER: Final = 8
#: Phases in which such things are done.
_BETWEEN_CALLS: Final = ("data", "outside")


def usual(profile: Profile) -> dict[CellKey, Totals]:
    """Its cells, but for phases that differ from step to step, and for what came after
    the last step, outside of modules: saving the model, for example."""
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
    """The time of these."""
    return sum(totals.self_ns for totals in usual(profile).values())


def ns_of_few_steps(profile: Profile) -> int:
    """The time of phases that differ from step to step, without what measuring took."""
    return sum(
        totals.self_ns
        for (_, phase), totals in profile.cells.items()
        if phase in _OF_FEW_STEPS and phase != "profiler"
    )


def garbage_of(profile: Profile) -> dict[CellKey, Totals]:
    """What Python took to look for garbage."""
    cells = profile.cells.items()
    return {key: totals for key, totals in cells if key[1] == "garbage"}


def without_outliers(profile: Profile, every: StepTimes) -> Profile:
    """The same, had steps that take far longer than nearly all others taken as long as
    half of all do. What they took beyond is taken off loading data and the code outside
    of modules.

    every: durations of all steps of the program.
    """
    most_ns = FAR_LONGER * every.quantile_ns(0.9)
    usual_ns = round(every.quantile_ns(0.5))
    far = [b for b in profile.step_times.later if b.total_ns > most_ns * b.steps]
    beyond_ns = sum(b.total_ns - b.steps * usual_ns for b in far)
    cells = dict(profile.cells)
    between_ns = sum(t.self_ns for key, t in cells.items() if key[1] in _BETWEEN_CALLS)
    if not (far and 0 < beyond_ns < between_ns):
        return profile
    for key, totals in profile.cells.items():
        if key[1] in _BETWEEN_CALLS:
            off_ns = totals.self_ns * beyond_ns // between_ns
            cells[key] = replace(totals, self_ns=totals.self_ns - off_ns)
    steps = sum(bucket.steps for bucket in far)
    kept = [b for b in profile.step_times.later if b not in far]
    later = sorted_buckets(
        [*kept, Bucket(bucket_of(usual_ns), steps, steps * usual_ns)]
    )
    return replace(
        profile,
        cells=cells,
        wall_ns=sum(totals.self_ns for totals in cells.values()),
        step_times=profile.step_times._replace(later=later),
    )
