"""Steps of which only the end was seen, estimated by steps that were measured: by
the nodes of autograd that were made in them, or by their time."""

from __future__ import annotations

from typing import Final, NamedTuple

from torchprof_hooks.capture.sampling.estimates.pattern import (
    OF_TRAINING,
    fixed_cells,
    ns_of_few_steps,
    share_in_training,
    usual,
    usual_ns,
    with_rest,
)
from torchprof_hooks.capture.sampling.estimates.stratum import Stratum, TimedPhases
from torchprof_hooks.profiles.cells import CellKey, sum_of_own_ns
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.step_times import StepTimes
from torchprof_hooks.profiles.totals import Totals

#: Steps that take this many times as long as the longest measured one are not estimated
#: by measured steps.
_MUCH_LONGER: Final = 2
#: Up to this time of the program per node, calling functions is what takes time, and in
#: all steps as many calls come to a node. Above it, the work inside of functions does,
#: which depends on their inputs.
_SHORT_NS: Final = 100_000
#: How much slower, or faster, a machine can be in the mean of all steps than around
#: those that were seen. If the difference is larger, it is other work of the program.
_MOST_SLOWER: Final = 1.5


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


def imagined(counted: Stratum, seen: ProfileData) -> ProfileData:
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
    fixed = fixed_cells(counted.profile)
    counted_times = counted.profile.step_times
    found = _known(counted_times, seen.step_times)
    if counted.is_unwatched and seen.step_times.evaluations:
        found = found.with_evaluations_in(counted_times)
    found = found.without(sum_of_own_ns(fixed))
    if not pattern_ns or not found.all_ns:
        return with_rest(counted.profile, fixed, seen.modules)
    known = _known(seen.step_times).without(ns_of_few_steps(seen))
    overhead_ns = usual_ns(seen) - pattern_ns
    share = _share_of_training(usual(seen), known, overhead_ns)
    timed = TimedPhases(counted, pattern)
    factors = _factors(pattern, share * pattern_ns, found, known, timed)
    return timed.imagined(factors, seen.modules)


def imagined_by_nodes(counted: Stratum, seen: Stratum) -> ProfileData | None:
    """The profile of training steps that were only counted, estimated by nodes: each is
    taken to cost as much time in modules, backward, optimizers and so on as in the
    steps that were seen; or more, if nodes took longer than around these. Phases that
    were timed, and calls that were watched, keep their own times. Of the time that is
    left, up to twice as much as in the seen steps counts as outside of modules; of the
    rest nothing is known.

    So steps may have any number of calls, and it does not matter how much of the time
    between calls measuring took, which is not known well where calls are short.

    None where time does not go with nodes: see `imagined` for such steps.
    """
    if not (counted.is_of_training and seen.is_of_training):
        return None
    pattern = usual(seen.profile.corrected())
    pattern_ns = sum_of_own_ns(pattern)
    if not 0 < pattern_ns <= _SHORT_NS * seen.nodes:
        return None
    steps_ns = counted.profile.step_times.steps_ns
    steps_ns -= sum_of_own_ns(fixed_cells(counted.profile))
    calls = counted.nodes / seen.nodes
    timed = TimedPhases(counted, pattern)
    factors = timed.factors
    # Where backward was timed in both, it tells how fast the machine was.
    by_all = calls * _slower(steps_ns / calls, seen.unseen_ns)
    factor = factors.get("backward", by_all)
    inside_ns, outside_ns = float(timed.watched_ns), 0.0
    for (_, phase), totals in pattern.items():
        if phase == "outside":
            outside_ns += factor * totals.self_ns
        elif phase not in timed.watched_phases:
            inside_ns += factors.get(phase, factor) * totals.self_ns
    if inside_ns > steps_ns:  # the machine was slower where it was looked at
        return None
    rest_ns = min(steps_ns - inside_ns, _MUCH_LONGER * outside_ns)
    times = {phase: factors.get(phase, factor) for _, phase in pattern}
    if outside_ns:
        times["outside"] = factor * rest_ns / outside_ns
    scales = {phase: (time, calls) for phase, time in times.items()}
    return timed.imagined(scales, seen.profile.modules)


def _slower(took_ns: float, unseen_ns: int) -> float:
    """How much slower the machine was. Both times are for the same number of nodes."""
    slower = took_ns / unseen_ns if unseen_ns else 1.0
    return slower if 1 / _MOST_SLOWER < slower < _MOST_SLOWER else 1.0


def _share_of_training(
    cells: dict[CellKey, Totals], known: _Known, overhead_ns: int
) -> float:
    """The share of training steps in the time without `overhead_ns`. That is what
    measuring took from them and from evaluation calls; from many short calls, more.
    """
    in_training_ns = of_known_ns = 0.0
    for key, totals in cells.items():
        share = share_in_training(cells, key)
        if share is not None:
            of_known_ns += totals.overhead_ns
            in_training_ns += share * totals.overhead_ns
    overhead_share = in_training_ns / of_known_ns if of_known_ns else 0.0
    all_ns = max(known.all_ns, 1)
    overhead_ns = min(overhead_ns, 9 * all_ns // 10)
    steps_ns = known.steps_ns - overhead_share * overhead_ns
    return min(max(steps_ns, 0.0) / (all_ns - overhead_ns), 1.0)


def _known(times: StepTimes, others: StepTimes | None = None) -> _Known:
    """Steps and calls in `times`; with `others`, only those that are like some of
    them."""
    if others is None:
        return _Known(
            times.steps, times.steps_ns, times.evaluations, times.evaluation_ns
        )
    longest_ns = max((b.total_ns / b.steps for b in others.later), default=0.0)
    longest_ns = max(longest_ns, others.first_mean_ns)
    like = [b for b in times.later if b.total_ns <= _MUCH_LONGER * longest_ns * b.steps]
    steps = sum(bucket.steps for bucket in like)
    evaluations = times.evaluations if others.evaluations else 0
    return _Known(
        steps,
        sum(bucket.total_ns for bucket in like),
        evaluations,
        times.evaluation_ns if evaluations else 0,
        (steps + evaluations) / max(times.steps + times.evaluations, 1),
    )


def _factors(
    pattern: dict[CellKey, Totals],
    training_ns: float,
    found: _Known,
    seen: _Known,
    timed: TimedPhases,
) -> dict[Phase, tuple[float, float]]:
    """Factors for the times and calls of each phase, from `seen` to `found`;
    training_ns: of the training steps of the pattern."""
    # Training took at least the cells that are its own.
    least_ns = sum(
        (share_in_training(pattern, key) or 0) * totals.self_ns
        for key, totals in pattern.items()
    )
    training = found.steps_ns / max(training_ns, least_ns, 1)
    rest_ns = found.all_ns - timed.within_ns(found.steps_ns)
    rest_ns -= found.share_of_all * timed.watched_ns
    rest_ns = max(min(rest_ns, timed.left_ns), 0.0)
    untimed_ns = others_ns = 0
    for (_, phase), totals in pattern.items():
        if phase not in (*timed.factors, *timed.watched_phases):
            untimed_ns += (phase in OF_TRAINING) * totals.self_ns
            others_ns += (phase not in OF_TRAINING) * totals.self_ns
    training = min(training, rest_ns / max(untimed_ns, 1))
    rest_ns -= training * untimed_ns
    others = rest_ns / others_ns if others_ns else 0.0
    calls = found.share_of(seen)
    of_steps = found.steps / seen.steps if seen.steps else 0.0
    return {
        phase: (timed.factors.get(phase, training), of_steps)
        if phase in OF_TRAINING
        else (others, calls or others)
        for _, phase in pattern
    }
