"""Profiles made of cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchprof_hooks import Profile
from torchprof_hooks.profiles.cells import Cells, sum_of_own_ns
from torchprof_hooks.profiles.data import P
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.parts import Part, divided
from torchprof_hooks.profiles.step_times import NO_STEP_TIMES, StepTimes


def profile_of(
    cells: Cells | None = None,
    modules: Mapping[str, ModuleInfo] | None = None,
    wall_ns: int | None = None,
    steps: int = 0,
    *,
    step_times: StepTimes = NO_STEP_TIMES,
    first: Cells | None = None,
    **facts: Any,
) -> Profile:
    """A profile with these cells in its loop, but for those of its `first` step, which
    are the start-up."""
    cells = cells or {}
    if wall_ns is None:
        wall_ns = sum_of_own_ns(cells)
    whole = Part("loop", wall_ns, steps, step_times, cells)
    of_first = StepTimes(step_times.first_steps, step_times.first_ns)
    return Profile(divided(whole, first or {}, of_first), modules or {}, **facts)


def without_cells(profile: Profile) -> Profile:
    """The same but for its cells."""
    return profile.with_parts(lambda part: replace(part, cells={}))


def with_fields(profile: P, **fields: Any) -> P:
    """The same with other fields in each of its parts."""
    return profile.with_parts(lambda part: replace(part, **fields))
