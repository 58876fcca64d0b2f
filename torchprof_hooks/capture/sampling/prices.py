"""What looking at steps costs: by what was counted, and by how long steps take."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from math import sqrt
from typing import Final

from torchprof_hooks.capture.sampling.levels import Ended, Level, Run
from torchprof_hooks.capture.sampling.machine_costs import (
    READINGS,
    USUAL_NS,
    CountedCosts,
    counted_costs,
    trivial_call_ns,
)

#: How many differences are remembered; how many it takes to believe in a lower cost
#: than the counted one, and how many, in a higher one.
_REMEMBERED: Final = 64
ENOUGH: Final = 8
_FEW: Final = 3
#: Other runs are compared with the last of this many bare ones. If that took so many
#: times as long as the middle one, it was a stall, and would make them all look cheap.
_BARE_RUNS: Final = 3
_STALLED: Final = 1.5
#: Share of the budget that watching calls may cost where no evaluation was seen lately,
#: and where some were: unwatched, these would make the steps after them look longer.
#: What watching takes is missing where steps are looked into.
_FOR_NOTHING: Final = 0.5
_FOR_EVALUATIONS: Final = 0.75
#: Share of the budget that timing backward passes and optimizers may take in steps of
#: which nothing else is seen.
_FOR_PHASES: Final = 0.25
#: So many evaluations, faded with each run, are as good as none: some hundred runs ago.
_AS_GOOD_AS_NONE: Final = 0.1
#: How far the cost of watching may go above its limit, not to go back and forth.
_PATIENCE: Final = 1.2
#: How much of what is known of earlier runs is kept when another one is added: some
#: fifty runs tell.
_KEPT: Final = 0.98


class Prices:
    """What a step costs on each level.

    The price is by how much a step took longer than the last bare ones: the median of
    that, plus its standard error, since an estimate that is too low by chance would
    have us measure more. As long as this is not known, the price is the counted one; it
    is never taken to be less than half of that, nor, by durations, to be more than the
    run has taken.

    counted: what things cost on this machine; by default it is timed, again and again:
        other programs come and go.
    bare: the level that others are compared with.
    watches: whether calls from outside are seen where only the ends of steps are seen
        otherwise.
    times_phases: whether backward passes and optimizers are timed where only the ends
        of steps are seen otherwise.
    """

    def __init__(self, counted: CountedCosts | None = None) -> None:
        self.bare = Level.STEPS
        self.watches = True
        self.times_phases = False
        self._is_timed = counted is None
        self._call_times_ns: deque[float] = deque(maxlen=READINGS)
        self._counted = counted or counted_costs(USUAL_NS)
        self._slower = 1.0  # the machine now, than at its best speed
        self._time_machine(READINGS)
        # The last run on each level; for phases, any that was looked into will do.
        self._last = {level: Ended(Run(level), 0) for level in Level}
        # Of runs that were looked into: the time at the machine's best speed, training
        # steps, and calls that could be watched.
        self._lately_ns = self._lately_steps = self._lately_calls = 0.0
        self._lately_evaluations = 0.0  # of runs in which some would have been seen
        # By kind: what a step of the last bare runs took, and others took longer.
        self._bare_ns: defaultdict[bool, deque[float]] = defaultdict(
            lambda: deque(maxlen=_BARE_RUNS)
        )
        self._longer_ns: defaultdict[tuple[Level, bool | None], deque[float]] = (
            defaultdict(lambda: deque(maxlen=_REMEMBERED))
        )

    def counted_ns(self, level: Level) -> float:
        """The counted price of a step, as of the last one on this level."""
        last = self._last[level]
        steps = last.run.steps
        return self.counted(last._replace(run=Run(level, steps))) / steps

    def counted(self, ended: Ended) -> float:
        """The counted price of a run."""
        (level, steps), _, spans, pauses, *_ = ended
        of_step, watched, timed, pause, of_span = self._counted
        if level > Level.PHASES:
            return pause * pauses + of_span * spans
        of_calls = watched * ended.calls + pause * max(pauses - ended.calls, 0)
        if level == Level.PHASES:
            return of_calls
        trained = max(steps - ended.evaluations, 0)
        return of_calls + trained * (of_step + timed * self.times_phases)

    def choose_watching(self, most: float) -> None:
        """Have calls watched if that costs, with seeing the ends of steps, no more than
        a part of this share of the time that steps take, training steps and evaluation
        calls as they come; a larger part, if there were evaluation calls. First, have
        backward passes and optimizers timed if steps are long enough for that."""
        of_step, watched, timed, *_ = self._counted
        timing_ns = self._lately_steps * timed
        self.times_phases = timing_ns < _FOR_PHASES * most * self._lately_ns
        has_evaluations = self._lately_evaluations >= _AS_GOOD_AS_NONE
        most *= _FOR_EVALUATIONS if has_evaluations else _FOR_NOTHING
        if self.watches:
            most *= _PATIENCE
        cost_ns = self._lately_steps * of_step + timing_ns * self.times_phases
        cost_ns += self._lately_calls * watched
        self.watches = cost_ns <= most * self._lately_ns

    def compare_with(self, level: Level) -> None:
        """From now on, other levels are compared with this one."""
        if level != self.bare:
            self.bare = level
            self._bare_ns.clear()
            self._longer_ns.clear()

    def known(self, level: Level, is_training: bool | None) -> int:
        """How many differences are remembered."""
        return len(self._longer_ns[level, is_training])

    def first(self, ended: Ended) -> float:
        """The counted price of the first step: its duration tells nothing."""
        self._time_machine(READINGS)
        return self._look_at(ended)

    def of(self, ended: Ended) -> float:
        """What it has cost to look at these steps, in nanoseconds."""
        (level, steps), duration_ns, *_ = ended
        kind = ended.is_training
        self._time_machine()
        counted_ns = self._look_at(ended)
        self._remember_calls(ended, max(duration_ns - counted_ns, 0))
        longer_ns = self._longer_ns[level, kind]
        if level == self.bare:
            if kind is not None:
                self._bare_ns[kind].append(duration_ns / steps)
        elif kind is not None and self._bare_ns[kind]:
            longer_ns.append(duration_ns / steps - _last_usual(self._bare_ns[kind]))
        known = len(longer_ns)
        if known < _FEW or level <= self.bare:
            return counted_ns
        seen_ns = steps * (_at_most(longer_ns) + self.counted_ns(self.bare))
        least_ns = counted_ns / 2 if known >= ENOUGH else counted_ns
        # No price is above the whole run: then, others were longer by chance.
        return max(min(seen_ns, duration_ns), least_ns)

    def _time_machine(self, times: int = 1) -> None:
        if self._is_timed:
            self._call_times_ns.extend(trivial_call_ns() for _ in range(times))
            shortest_ns = min(self._call_times_ns) or USUAL_NS
            usual_ns = sorted(self._call_times_ns)[len(self._call_times_ns) // 2]
            self._slower = max(usual_ns / shortest_ns, 1.0)
            self._counted = counted_costs(shortest_ns)

    def _look_at(self, ended: Ended) -> float:
        """Remember what was seen in a run; the counted price of it."""
        self._last[ended.run.level] = ended
        if ended.run.level > Level.STEPS:
            self._last[Level.PHASES] = ended
        return self.counted(ended)

    def _remember_calls(self, ended: Ended, bare_ns: float) -> None:
        if ended.run.level > Level.STEPS or self.watches:
            evaluations = _KEPT * self._lately_evaluations + ended.evaluations
            self._lately_evaluations = evaluations
        if ended.run.level > Level.STEPS:
            trained = max(ended.run.steps - ended.evaluations, 0)
            self._lately_ns = _KEPT * self._lately_ns + bare_ns / self._slower
            self._lately_steps = _KEPT * self._lately_steps + trained
            self._lately_calls = _KEPT * self._lately_calls + ended.calls


def _at_most(values: Collection[float]) -> float:
    """The median plus its standard error, which is 1.253 times that of the mean if
    values are spread normally. The standard deviation then is 1.483 times the median
    absolute deviation, which is too low where values are few (Croux and Rousseeuw
    1992). Outliers only spoil that if half of the values are outliers; with three
    values, the quartiles are the extremes."""
    middle, count = _median(values), len(values)
    deviation = 1.483 * _median([abs(value - middle) for value in values])
    return middle + 1.253 * deviation * count / (count - 0.8) / sqrt(count)


def _median(values: Collection[float]) -> float:
    """The median; of two in the middle, the upper one."""
    return sorted(values)[len(values) // 2]


def _last_usual(values: Sequence[float]) -> float:
    """The last one; if that is far above the others, the one in the middle."""
    lower_middle = sorted(values)[(len(values) - 1) // 2]
    return lower_middle if values[-1] > _STALLED * lower_middle else values[-1]
