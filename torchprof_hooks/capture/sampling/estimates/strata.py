"""The steps of a program by how closely they were measured, and estimates of all steps
from those that were measured closely."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Final

from torchprof_hooks.capture.sampling.estimates.division import (
    Division,
    Part,
    backward_weights,
    parts_of,
)
from torchprof_hooks.capture.sampling.estimates.pattern import (
    fixed_cells,
    not_measured_inside,
    usual,
    usual_ns,
    with_rest,
)
from torchprof_hooks.capture.sampling.estimates.stratum import Stratum
from torchprof_hooks.capture.sampling.estimates.unseen_steps import (
    imagined,
    imagined_by_nodes,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.step_times import StepTimes

_NO_STEPS: Final = Stratum()


@dataclass(frozen=True, slots=True)
class Strata:
    """All steps of a program, and its evaluation calls, which count as steps here.

    warm_up: the first step, with evaluation calls before it. phases, modules,
        functions: later steps, by what was measured in them. In all of these, each
        call of an outermost module, each optimizer step and each backward pass is
        known.
    disturbed: steps that tracing has disturbed; they tell nothing of others.
    counted: steps of which only the end was seen.
    """

    warm_up: Stratum = _NO_STEPS
    phases: Stratum = _NO_STEPS
    modules: Stratum = _NO_STEPS
    functions: Stratum = _NO_STEPS
    disturbed: Stratum = _NO_STEPS
    counted: Stratum = _NO_STEPS

    @property
    def steps(self) -> int:
        """How many steps there were, evaluation calls included."""
        return sum(stratum.steps for stratum in self._all())

    @property
    def training_steps(self) -> int:
        """How many training steps there were, without evaluation calls."""
        return sum(stratum.profile.step_times.steps for stratum in self._all())

    @property
    def overhead_ns(self) -> int:
        """What measuring took in all steps, estimated by the cost of calls."""
        return sum(stratum.profile.overhead_ns for stratum in self._all())

    @property
    def step_times(self) -> StepTimes:
        """Durations of all steps but the disturbed ones."""
        kept = (self.warm_up, *self._later())
        return reduce(StepTimes.merge, (s.profile.step_times for s in kept))

    @property
    def whole(self) -> ProfileData:
        """What was measured in all steps, as one profile. Where modules were not looked
        into, their time is on a row of its own."""
        return _merged(self._profiles_of_all())

    def estimate(self, *, of_functions: bool, warm_up: bool = True) -> ProfileData:
        """What all steps would have shown, had modules, or functions, been looked at
        in each.

        Time in each part of the program (an outermost module, backward, ...) is that of
        all steps, without what measuring took (see `Profile.corrected`). Steps that
        were only counted are estimated first (see `imagined_by_nodes`, `imagined`).
        Inside of a part, time is divided as in the steps that were looked at closely
        enough, and calls are scaled like those of the part itself. Parts that are in
        none of these steps are not divided. What measuring took is on the row
        "(profiler)".

        warm_up: whether to include the first step.
        """
        close = [self.functions] if of_functions else self._close_enough()
        counted = self.counted._replace(profile=self._imagined())
        seen = _together(close)
        later = (self.phases, self.modules, self.functions, counted)
        others = (each for each in later if not any(each is one for one in close))
        parts = [seen, *(each for each in others if each != _NO_STEPS)]
        ratio = sum(each.steps for each in parts) / max(seen.steps, 1)
        profiles = [each.profile for each in parts]
        knows_calls = self.counted.knows_calls or not self.counted.profile.wall_ns
        weights = backward_weights(seen.profile, profiles) if knows_calls else {}
        estimated = Division(profiles, seen.profile, ratio, weights).profile()
        if not warm_up:
            return estimated
        return estimated.merge(self.warm_up.profile.corrected())

    @property
    def steps_in_phases(self) -> int:
        """In how many steps phases were timed, with the first."""
        return self.looked_at(of_functions=False) + self.phases.steps

    def looked_at(self, *, of_functions: bool) -> int:
        """In how many steps modules, or functions, were looked at, with the first."""
        steps = self.warm_up.steps + self.functions.steps
        return steps if of_functions else steps + self.modules.steps

    def _imagined(self) -> ProfileData:
        """An estimate of the steps that were only counted."""
        if not self.counted.profile.wall_ns:
            return self.counted.profile
        phases = self.phases.profile.corrected()
        # Timing phases leaves the time between them nearly as it is.
        as_phases = self.phases._replace(unseen_ns=usual_ns(phases))
        close = _together(self._close_enough())
        seen = _together([as_phases, close])
        # Nor does anything of ours run inside of calls there: they alone tell more, if
        # they have as many nodes, and all parts.
        has_all = _usual_parts(phases) >= _usual_parts(close.profile)
        is_enough = self.phases.nodes >= close.nodes and has_all
        by_nodes = imagined_by_nodes(self.counted, as_phases if is_enough else seen)
        return by_nodes or imagined(self.counted, seen.profile)

    def _close_enough(self) -> list[Stratum]:
        """The strata that times of modules are taken from. Steps with functions are
        taken only if they have parts that others lack: measuring functions costs time,
        which falls on some modules more than on others."""
        if parts_of(self.functions.profile) <= parts_of(self.modules.profile):
            return [self.modules]
        return [self.modules, self.functions]

    def _later(self) -> tuple[Stratum, ...]:
        return self.phases, self.modules, self.functions, self.counted

    def _all(self) -> tuple[Stratum, ...]:
        return self.warm_up, *self._later(), self.disturbed

    def _profiles_of_all(self) -> Iterator[ProfileData]:
        for stratum in self._all():
            is_coarse = stratum is self.phases or stratum is self.disturbed
            found = stratum.profile
            if stratum is self.counted and found.wall_ns:
                yield with_rest(found, fixed_cells(found), {})
            else:
                yield not_measured_inside(found) if is_coarse else found


def _usual_parts(profile: ProfileData) -> set[Part]:
    return parts_of(profile.with_cells(usual(profile)))


def _merged(profiles: Iterable[ProfileData]) -> ProfileData:
    return reduce(ProfileData.merge, [*profiles] or [ProfileData()])


def _together(strata: Iterable[Stratum]) -> Stratum:
    """The profiles as one, and how many steps and nodes there are in all."""
    kept = [stratum for stratum in strata if stratum != _NO_STEPS]
    nodes = sum(stratum.nodes for stratum in kept)
    known = [stratum for stratum in kept if stratum.unseen_ns]
    of_known_ns = sum(stratum.unseen_ns for stratum in known)
    of_known = sum(stratum.nodes for stratum in known)
    return Stratum(
        _merged(stratum.profile for stratum in kept),
        sum(stratum.steps for stratum in kept),
        nodes=nodes,
        unseen_ns=of_known_ns * nodes // of_known if of_known else 0,
    )
