"""What steps that were seen show of others: all that does not come once."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.names import OUTSIDE_NAME
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.totals import Totals

_OUTSIDE: Final[CellKey] = ((OUTSIDE_NAME,), "outside")
#: Phases that differ from step to step.
_OF_FEW_STEPS: Final = ("profiler", "compiling", "garbage")


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
