"""Steps that were not looked into: their time is on a row of its own, or is estimated
by steps that were measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from torchprof_hooks.profiles.cells import CellKey, Infos, add_cell, sum_of_own_ns
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    BACKWARD_PHASES,
    ENGINE_NAME,
    PROFILER_NAME,
    UNSAMPLED_NAME,
)
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.program.pattern import (
    cut,
    fixed_cells,
    ns_of_few_steps,
    scaled,
    usual,
    usual_ns,
)
from torchprof_hooks.profiles.program.stratum import Stratum
from torchprof_hooks.profiles.program.timed_phases import TimedPhases
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.totals import NOTHING, Totals

#: For time of which nothing is known.
UNSAMPLED_INFOS: Final = {UNSAMPLED_NAME: ModuleInfo(kind="unsampled")}
UNSEEN: Final[CellKey] = ((UNSAMPLED_NAME,), "outside")

#: Phases that evaluation calls do not have.
_OF_TRAINING: Final = (
    "backward",
    "recompute",
    "optimizer",
    "waiting",
    "communication",
)
#: Steps that take this many times as long as the longest measured one are not estimated
#: by measured steps.
MUCH_LONGER: Final = 2
#: Phases of a call, in a part of the program that was looked at as a whole.
_INSIDE: Final = ("forward", *BACKWARD_PHASES)


class _Known(NamedTuple):
    """How many training steps and evaluation calls there are, and what they took.

    share_of_all: their share of the number of all steps and calls.
    """

    steps: int
    steps_ns: int
    evaluations: int
    evaluation_ns: int
    share_of_all: float = 1.0

    @property
    def all_ns(self) -> int:
        return self.steps_ns + self.evaluation_ns

    def without(self, taken_ns: int) -> _Known:
        """The same, if something else has taken `taken_ns` of the time, from steps and
        from calls in proportion."""
        left = 1 - taken_ns / max(self.all_ns, taken_ns, 1)
        return self._replace(
            steps_ns=round(left * self.steps_ns),
            evaluation_ns=round(left * self.evaluation_ns),
        )

    def with_evaluations_in(self, times: StepTimes) -> _Known:
        """The same with all other steps in `times`, as if each had an evaluation call
        in it, and took as long as the steps known here without that."""
        others = times.later_steps - self.steps
        training_ns = others * self.steps_ns // max(self.steps, 1)
        evaluation_ns = times.later_ns - self.steps_ns - training_ns
        if not self.steps or evaluation_ns <= 0:
            return self
        return self._replace(
            steps=self.steps + others,
            steps_ns=self.steps_ns + training_ns,
            evaluations=self.evaluations + others,
            evaluation_ns=self.evaluation_ns + evaluation_ns,
        )

    def share_of(self, other: _Known) -> float:
        """The ratio of the numbers of steps, if all are of one kind; else 0.0."""
        both = (self.steps or other.steps) and (self.evaluations or other.evaluations)
        count = other.steps + other.evaluations
        return 0.0 if both or not count else (self.steps + self.evaluations) / count


def imagined(counted: Stratum, seen: Profile) -> Profile:
    """The profile of steps that were only counted and timed, as it would be if they
    were like those that were seen: training steps like training steps, and evaluation
    calls like such calls.

    Garbage collection, what measuring took, the phases that were timed and the calls
    that were watched keep the times that they had in the counted steps.
    Time of steps that are much longer than all that were seen, and what comes after the
    last step, is on a row of its own: nothing is known of it. Where evaluation calls
    were not watched, they are what makes steps so long, and one may be many.
    """
    pattern = usual(seen.corrected())
    pattern_ns = sum_of_own_ns(pattern)
    cells = fixed_cells(counted.profile)
    fixed_ns = sum_of_own_ns(cells)
    counted_times = counted.profile.step_times
    found = _known(counted_times, seen.step_times)
    if counted.is_unwatched and seen.step_times.evaluations:
        found = found.with_evaluations_in(counted_times)
    found = found.without(fixed_ns)
    if pattern_ns and found.all_ns:
        known = _known(seen.step_times).without(ns_of_few_steps(seen))
        overhead_ns = usual_ns(seen) - pattern_ns
        share = _share_of_training(usual(seen), known, overhead_ns)
        timed = TimedPhases(counted, pattern)
        cells.update(_like(pattern, share * pattern_ns, found, known, timed))
        cells.update(timed.watched)
    return with_rest(counted.profile, cells, seen.modules)


def _share_of_training(
    cells: dict[CellKey, Totals], known: _Known, overhead_ns: int
) -> float:
    """The share of training steps in the time without `overhead_ns`. That is what
    measuring took from them and from evaluation calls; from many short calls, more.
    """
    in_training_ns = of_known_ns = 0.0
    for key, totals in cells.items():
        share = _share_in_training(cells, key)
        if share is not None:
            of_known_ns += totals.overhead_ns
            in_training_ns += share * totals.overhead_ns
    overhead_share = in_training_ns / of_known_ns if of_known_ns else 0.0
    all_ns = max(known.all_ns, 1)
    overhead_ns = min(overhead_ns, 9 * all_ns // 10)
    steps_ns = known.steps_ns - overhead_share * overhead_ns
    return min(max(steps_ns, 0.0) / (all_ns - overhead_ns), 1.0)


def _share_in_training(cells: dict[CellKey, Totals], key: CellKey) -> float | None:
    """How much of a cell belongs to training steps: of the calls of a module, as many
    as had a backward. None if that is not known."""
    path, phase = key
    if phase in _OF_TRAINING:
        return 1.0
    if phase != "forward" or not cells[key].calls:
        return None
    backward = cells.get((path, "backward"), NOTHING)
    return min(backward.calls / cells[key].calls, 1.0)


def _known(times: StepTimes, others: StepTimes | None = None) -> _Known:
    """Steps and calls in `times`; with `others`, only those that are like some of
    them."""
    if others is None:
        return _Known(
            times.steps, times.steps_ns, times.evaluations, times.evaluation_ns
        )
    longest_ns = max((b.total_ns / b.steps for b in others.later), default=0.0)
    longest_ns = max(longest_ns, others.first_mean_ns)
    like = [b for b in times.later if b.total_ns <= MUCH_LONGER * longest_ns * b.steps]
    steps = sum(bucket.steps for bucket in like)
    evaluations = times.evaluations if others.evaluations else 0
    return _Known(
        steps,
        sum(bucket.total_ns for bucket in like),
        evaluations,
        times.evaluation_ns if evaluations else 0,
        (steps + evaluations) / max(times.steps + times.evaluations, 1),
    )


def _like(
    pattern: dict[CellKey, Totals],
    training_ns: float,
    found: _Known,
    seen: _Known,
    timed: TimedPhases,
) -> dict[CellKey, Totals]:
    """The pattern scaled from `seen` to `found`; training_ns: of its training steps."""
    # Training took at least the cells that are its own.
    least_ns = sum(
        (_share_in_training(pattern, key) or 0) * totals.self_ns
        for key, totals in pattern.items()
    )
    training = found.steps_ns / max(training_ns, least_ns, 1)
    rest_ns = found.all_ns - timed.within_ns(found.steps_ns)
    rest_ns -= found.share_of_all * timed.watched_ns
    rest_ns = max(min(rest_ns, timed.left_ns), 0.0)
    untimed_ns = others_ns = 0
    for (_, phase), totals in pattern.items():
        if phase not in (*timed.factors, *timed.watched_phases):
            untimed_ns += (phase in _OF_TRAINING) * totals.self_ns
            others_ns += (phase not in _OF_TRAINING) * totals.self_ns
    training = min(training, rest_ns / max(untimed_ns, 1))
    rest_ns -= training * untimed_ns
    others = rest_ns / others_ns if others_ns else 0.0
    calls = found.share_of(seen)
    of_steps = found.steps / seen.steps if seen.steps else 0.0
    return {
        key: scaled(totals, timed.factors.get(key[1], training), of_steps)
        if key[1] in _OF_TRAINING
        else scaled(totals, others, calls or others)
        for key, totals in pattern.items()
        if key[1] not in timed.watched_phases
    }


def with_rest(counted: Profile, cells: dict[CellKey, Totals], infos: Infos) -> Profile:
    """`counted` with these cells and descriptions. What they lack of its wall time is
    booked as not looked into, to the nanosecond."""
    rest_ns = counted.wall_ns - sum_of_own_ns(cells)
    largest = max(cells, key=lambda key: cells[key].self_ns, default=UNSEEN)
    if cells and rest_ns < -min(len(cells), cells[largest].self_ns):
        cells = cut(cells, counted.wall_ns)
        rest_ns = counted.wall_ns - sum_of_own_ns(cells)
    key = largest if rest_ns <= len(cells) else UNSEEN  # rounded
    known = cells.get(key, NOTHING)
    cells[key] = replace(known, self_ns=known.self_ns + rest_ns)
    modules = {**counted.modules, **infos, **UNSAMPLED_INFOS}
    if any(path == (PROFILER_NAME,) for path, _ in cells):
        modules[PROFILER_NAME] = ModuleInfo(kind="profiler")
    return replace(counted, cells=cells, modules=modules)


def not_looked_into(profile: Profile) -> Profile:
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
    return replace(profile, cells=cells, modules=infos)
