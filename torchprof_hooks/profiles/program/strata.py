"""The steps of a program by how closely they were measured, and estimates of all steps
by those that were measured closely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Annotated, Final, NamedTuple

from torchprof_hooks.profiles.cells import CellKey, add_cell
from torchprof_hooks.profiles.files.fields import OPTIONAL, Count
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    BACKWARD_PHASES,
    OUTSIDE_NAME,
    Phase,
)
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.unseen_steps import (
    UNSAMPLED_INFOS,
    imagined,
    not_looked_into,
    scaled,
)
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.totals import Totals

Part = tuple[str, Phase]


class Stratum(NamedTuple):
    """Steps and evaluation calls of one kind, how many have ended, and what these took.
    The profile has what came after the last one as well."""

    profile: Profile = Profile()
    steps: Count = 0
    steps_ns: Count = 0


_NO_STEPS: Final = Stratum()


@dataclass(frozen=True, slots=True)
class Strata:
    """All steps of a program, and its evaluation calls, which count as steps here.

    warm_up: the first one. phases, modules, functions: those after it, by how closely
        they were looked at; of modules called from outside of all others, and of
        optimizers and backward passes, all in these are known.
    disturbed: steps that something of ours took part in; they say nothing of others.
    counted: those of which only the end was seen.
    """

    warm_up: Stratum = _NO_STEPS
    phases: Stratum = _NO_STEPS
    modules: Stratum = _NO_STEPS
    functions: Stratum = _NO_STEPS
    disturbed: Stratum = _NO_STEPS
    counted: Annotated[Stratum, OPTIONAL] = _NO_STEPS

    @property
    def steps(self) -> int:
        """How many there were."""
        return sum(stratum.steps for stratum in self._all())

    @property
    def step_times(self) -> StepTimes:
        """Durations of all steps but the disturbed ones."""
        kept = (self.warm_up, *self._later())
        return reduce(StepTimes.merge, (s.profile.step_times for s in kept))

    @property
    def whole(self) -> Profile:
        """What was measured in all steps, as one profile. Where modules were not looked
        into, their time is on a row of its own."""
        return _merged(self._profiles_of_all())

    def estimate(self, *, of_functions: bool, warm_up: bool = True) -> Profile:
        """What all steps would have shown, had modules, or functions, been looked at
        in each.

        Time in each part of the program (an outermost module, backward, ...) is that of
        all steps, as it was; in those that were only counted, what it is in others (see
        `imagined`). It is divided as in those that were looked at closely enough. The
        numbers of calls of such a part are in proportion to its own. Of what lies in no
        part like that, nothing is estimated.

        warm_up: whether the first step is to be in it.
        """
        close = [self.functions] if of_functions else self._close_enough()
        counted = self.counted._replace(profile=self._imagined())
        seen = _together(close)
        later = (self.phases, self.modules, self.functions, counted)
        others = (each for each in later if not any(each is one for one in close))
        estimated = _divided(_together([seen, *others]), seen)
        return estimated.merge(self.warm_up.profile) if warm_up else estimated

    @property
    def steps_in_phases(self) -> int:
        """In how many steps phases were timed, with the first."""
        return self.looked_at(of_functions=False) + self.phases.steps

    def looked_at(self, *, of_functions: bool) -> int:
        """In how many steps modules, or functions, were looked at, with the first."""
        steps = self.warm_up.steps + self.functions.steps
        return steps if of_functions else steps + self.modules.steps

    def _imagined(self) -> Profile:
        """An estimate of the steps that were only counted."""
        if not self.counted.profile.wall_ns:
            return self.counted.profile
        seen = [self.phases, *self._close_enough()]
        return imagined(self.counted.profile, _together(seen).profile)

    def _close_enough(self) -> list[Stratum]:
        """Where to look for modules. Looking at functions takes time of its own, which
        falls on some modules more than on others."""
        alone = _parts(self.modules.profile)
        needed = _parts(self.functions.profile)
        if needed.keys() <= alone.keys():
            return [self.modules]
        return [self.modules, self.functions]

    def _later(self) -> tuple[Stratum, ...]:
        return self.phases, self.modules, self.functions, self.counted

    def _all(self) -> tuple[Stratum, ...]:
        return self.warm_up, *self._later(), self.disturbed

    def _profiles_of_all(self) -> Iterator[Profile]:
        for stratum in self._all():
            is_coarse = stratum is self.phases or stratum is self.disturbed
            found = stratum.profile
            if stratum is self.counted and found.wall_ns:
                yield imagined(found, Profile())
            else:
                yield not_looked_into(found) if is_coarse else found


def _merged(profiles: Iterable[Profile]) -> Profile:
    return reduce(Profile.merge, [*profiles] or [Profile()])


def _together(strata: Iterable[Stratum]) -> Stratum:
    """The profiles as one, and how many steps there are in all."""
    kept = tuple(strata)
    return Stratum(_merged(s.profile for s in kept), sum(s.steps for s in kept))


def _part(profile: Profile, key: CellKey) -> Part:
    """The part of a program that a cell is in: an outermost module, or what is no
    module; backward as a whole; or the code outside of all."""
    path, phase = key
    if phase in BACKWARD_PHASES:
        return BACKWARD_NAME, "backward"
    if profile.modules[path[0]].kind == "function":
        return OUTSIDE_NAME, "outside"
    return path[0], phase


def _parts(profile: Profile, *, of_functions: bool = False) -> Counter[Part]:
    """Time of each part, or that of the functions in it."""
    found: Counter[Part] = Counter()
    for key, totals in profile.cells.items():
        if not of_functions or profile.modules[key[0][-1]].kind == "function":
            found[_part(profile, key)] += totals.self_ns
    return found


def _factors(
    wanted_ns: int, found_ns: int, functions_ns: int, share_of_calls: float
) -> tuple[float, float]:
    """Factors for the times of a part: for cells that are not functions, and for
    functions. Measuring functions takes time between them, not in them. So functions
    are scaled with their number of calls, and the rest gets the time that remains."""
    rest_ns = found_ns - functions_ns
    of_functions = share_of_calls * functions_ns
    if not rest_ns or of_functions > wanted_ns:
        return wanted_ns / found_ns, wanted_ns / found_ns
    return (wanted_ns - of_functions) / rest_ns, share_of_calls


def _divided(all_steps: Stratum, seen: Stratum) -> Profile:
    """The time of `all_steps`, divided as in the steps `seen` among them, without the
    time
    that measuring took in these: most steps were not measured."""
    profile, pattern = all_steps.profile, seen.profile.corrected()
    wanted, found = _parts(profile), _parts(pattern)
    of_functions = _parts(pattern, of_functions=True)
    shares = {part: _share_of_calls(all_steps, seen, part) for part in found}
    factors = {
        part: _factors(wanted[part], found[part], of_functions[part], shares[part])
        for part in found
        if found[part]
    }
    cells: dict[CellKey, Totals] = {}
    for key, totals in pattern.cells.items():
        part = _part(pattern, key)
        if part in factors:
            is_function = pattern.modules[key[0][-1]].kind == "function"
            cells[key] = scaled(totals, factors[part][is_function], shares[part])
    _add_rounding(cells, pattern, wanted)
    if not all(found[part] for part in wanted):  # some were never seen from close by
        coarse = not_looked_into(profile)
        for key, totals in coarse.cells.items():
            if not found[_part(coarse, key)]:
                add_cell(cells, key, totals)
    return replace(
        profile,
        cells=cells,
        modules={**profile.modules, **UNSAMPLED_INFOS, **pattern.modules},
        wall_ns=sum(totals.self_ns for totals in cells.values()),
    )


def _add_rounding(
    cells: dict[CellKey, Totals], pattern: Profile, wanted: Mapping[Part, int]
) -> None:
    """Make the times of each part add up to that of the part, to the nanosecond, by
    adding what rounding lost to the largest of them."""
    largest: dict[Part, CellKey] = {}
    missing = Counter(wanted)
    for key, totals in cells.items():
        part = _part(pattern, key)
        missing[part] -= totals.self_ns
        known = largest.setdefault(part, key)
        if totals.self_ns > cells[known].self_ns:
            largest[part] = key
    for part, key in largest.items():
        totals = cells[key]
        cells[key] = replace(totals, self_ns=totals.self_ns + missing[part])


def _share_of_calls(all_steps: Stratum, seen: Stratum, part: Part) -> float:
    key: CellKey = (part[:1], part[1])
    whole, known = (
        stratum.profile.cells.get(key, Totals()).calls for stratum in (all_steps, seen)
    )
    return whole / known if known else all_steps.steps / max(seen.steps, 1)
