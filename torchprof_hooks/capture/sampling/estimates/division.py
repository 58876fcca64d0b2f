"""The time of all steps of a program, divided as in those that were measured."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Final

from torchprof_hooks.capture.sampling.estimates.pattern import (
    UNSAMPLED_INFOS,
    not_measured_inside,
    scaled,
)
from torchprof_hooks.profiles.cells import (
    CellKey,
    Infos,
    add_cell,
    outermost,
    own_times,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    BACKWARD_PHASES,
    OUTSIDE_NAME,
    PROFILER_NAME,
    Phase,
)
from torchprof_hooks.profiles.totals import Totals

Part = tuple[str, Phase]
#: What measuring took.
_PROFILER: Final[Part] = (PROFILER_NAME, "profiler")
#: A part, and whether this is the functions in the part, or all else in it.
_Group = tuple[Part, bool]


class Division:
    """An estimate of all steps. The time of each part of the program is known in all of
    them; inside of a part, it is divided as in the steps that were measured. Both
    are without the time that measuring took.

    parts: the profiles of all steps.
    seen: the profile of the steps that were measured; it is among the parts.
    ratio: how many steps there are for each that was measured.
    weights: see `backward_weights`; {} if calls are not known in all steps.
    """

    def __init__(
        self,
        parts: Sequence[ProfileData],
        seen: ProfileData,
        ratio: float,
        weights: Mapping[str, float],
    ) -> None:
        self._parts = parts
        self._seen = seen.corrected()
        self._ratio = ratio
        self._weights = weights
        self._infos = self._seen.modules
        self._groups = {key: self._group(key) for key in self._seen.cells}
        self._wanted = self._part_times()
        self._factors, self._shares = self._find_factors()

    def profile(self) -> ProfileData:
        """The estimate. Calls inside of a part are scaled like the calls of the part
        itself. Own times add up to the wall time of all steps."""
        cells = self._divided()
        for key, totals in self._seen_as_a_whole().items():
            add_cell(cells, key, totals)
        measured = reduce(ProfileData.merge, self._parts)
        infos = {**measured.modules, **UNSAMPLED_INFOS, **self._infos}
        return measured.with_cells(cells, infos)

    def _divided(self) -> dict[CellKey, Totals]:
        """The cells of parts that were measured. The times of each part add up to
        that of the part, to the nanosecond: what rounding loses goes to the next cell,
        and the last of it to the largest."""
        cells: dict[CellKey, Totals] = {}
        lost: defaultdict[Part, float] = defaultdict(float)
        largest: dict[Part, CellKey] = {}
        missing = Counter(self._wanted)
        for key, totals in self._seen.cells.items():
            group = part, _ = self._groups[key]
            if group not in self._factors:
                continue
            weight = self._weight(key)
            time = weight * self._factors[group]
            exact = totals.self_ns * time + lost[part]
            own_ns = round(exact)
            lost[part] = exact - own_ns
            missing[part] -= own_ns
            cells[key] = _with_own(
                scaled(totals, time, weight * self._shares[part]), own_ns
            )
            if own_ns > cells[largest.setdefault(part, key)].self_ns:
                largest[part] = key
        for part, key in largest.items():
            cells[key] = _with_own(cells[key], cells[key].self_ns + missing[part])
        return cells

    def _part_times(self) -> Counter[Part]:
        """Time of each part in all steps."""
        found: Counter[Part] = Counter()
        for profile in self._parts:
            infos = {**self._infos, **profile.modules}
            for key, own_ns in own_times(profile.cells).items():
                found[_part(key, infos)] += own_ns
        return found

    def _group(self, key: CellKey) -> _Group:
        is_function = self._infos[key[0][-1]].kind == "function"
        return _part(key, self._infos), is_function

    def _weight(self, key: CellKey) -> float:
        """The weight of a cell among those of its part (see `backward_weights`)."""
        path, phase = key
        return self._weights.get(path[0], 1.0) if phase in BACKWARD_PHASES else 1.0

    def _find_factors(self) -> tuple[dict[_Group, float], dict[Part, float]]:
        """Factors for times (see `_time_factors`), and for the calls of parts."""
        found: defaultdict[_Group, float] = defaultdict(float)
        for key, totals in self._seen.cells.items():
            found[self._groups[key]] += totals.self_ns * self._weight(key)
        shares = {part: self._share_of_calls(part) for part, _ in found}
        factors: dict[_Group, float] = {}
        for part, share in shares.items():
            functions_ns = found[part, True]
            part_ns = functions_ns + found[part, False]
            if part_ns:
                factors[part, False], factors[part, True] = _time_factors(
                    self._wanted[part], part_ns, functions_ns, share
                )
        return factors, shares

    def _share_of_calls(self, part: Part) -> float:
        known = outermost(self._seen.cells, *part).calls
        whole = sum(outermost(profile.cells, *part).calls for profile in self._parts)
        return whole / known if known else self._ratio

    def _seen_as_a_whole(self) -> Mapping[CellKey, Totals]:
        """Cells of parts that are in no step that was measured."""
        found: dict[CellKey, Totals] = {}
        unseen = {p for p in self._wanted if (p, False) not in self._factors}
        for profile in self._parts if unseen else ():
            cells = {
                key: totals
                for key, totals in profile.cells.items()
                if _part(key, profile.modules) in unseen
            }
            coarse = not_measured_inside(profile.with_cells(cells).corrected())
            for key, totals in coarse.cells.items():
                if _part(key, coarse.modules) != _PROFILER:
                    add_cell(found, key, totals)
        if _PROFILER in unseen:  # with what measuring took in all parts
            key = _PROFILER[:1], _PROFILER[1]
            found[key] = Totals(self_ns=self._wanted[_PROFILER])
        return found


def _with_own(totals: Totals, own_ns: int) -> Totals:
    return totals if totals.self_ns == own_ns else replace(totals, self_ns=own_ns)


def parts_of(profile: ProfileData) -> set[Part]:
    """The parts of the program that have cells."""
    return {_part(key, profile.modules) for key in profile.cells}


def _part(key: CellKey, infos: Infos) -> Part:
    """The part of a program that a cell is in: an outermost module, or what is no
    module; backward as a whole; or the code outside of all."""
    path, phase = key
    if phase in BACKWARD_PHASES:
        return BACKWARD_NAME, "backward"
    if infos[path[0]].kind == "function":
        return OUTSIDE_NAME, "outside"
    return path[0], phase


def _time_factors(
    wanted_ns: int, found_ns: float, functions_ns: float, share_of_calls: float
) -> tuple[float, float]:
    """Factors for the times of a part: for cells that are not functions, and for
    functions. Measuring functions takes time between them, not in them. So functions
    are scaled with their number of calls, and the rest gets the time that remains."""
    rest_ns = found_ns - functions_ns
    of_functions = share_of_calls * functions_ns
    if not rest_ns or of_functions > wanted_ns:
        return wanted_ns / found_ns, wanted_ns / found_ns
    return (wanted_ns - of_functions) / rest_ns, share_of_calls


def backward_weights(
    seen: ProfileData, parts: Sequence[ProfileData]
) -> dict[str, float]:
    """For each outermost module, how many training calls there are in all steps
    (`parts`) per call in those that were measured (`seen`), relative to the mean.

    Only where modules are measured does it show whose a backward is, and of longer
    steps, more are measured. Empty where only one module has a backward.
    """
    untrained: dict[str, int] = {}
    trained = set()
    for (path, phase), totals in seen.cells.items():
        name, *inner = path
        if phase == "forward" and not inner and seen.modules[name].kind == "module":
            backward = outermost(seen.cells, name, "backward")
            with_backward = min(backward.calls, totals.calls)
            untrained[name] = totals.calls - with_backward
            if with_backward:
                trained.add(name)
    if len(trained) < 2:
        return {}
    # Of calls without a backward, some are in training steps, the rest evaluations.
    all_untrained = max(sum(untrained.values()), seen.step_times.evaluations, 1)
    shares = {name: untrained[name] / all_untrained for name in sorted(trained)}
    known = _training_calls([seen], shares)
    found = _training_calls(parts, shares)
    whole = {name: max(found[name], known[name]) for name in known}
    mean = sum(whole.values()) / sum(known.values())
    return {name: whole[name] / known[name] / mean for name in known}


def _training_calls(
    profiles: Sequence[ProfileData], shares: Mapping[str, float]
) -> dict[str, float]:
    """Calls of modules, without the `shares` of evaluations that are theirs."""
    evaluations = sum(profile.step_times.evaluations for profile in profiles)
    return {
        name: sum(outermost(each.cells, name).calls for each in profiles)
        - share * evaluations
        for name, share in shares.items()
    }
