"""What looking at steps costs: by what was counted, and by how long steps take."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection
from enum import IntEnum
from math import sqrt
from time import perf_counter_ns
from typing import Final, NamedTuple

from torchprof_hooks.capture.core import CORE


class Level(IntEnum):
    """How closely a step is looked at: nothing but its end is noticed; what forward,
    backward, optimizers and data loading take, each as a whole; modules; functions."""

    STEPS = 0
    PHASES = 1
    MODULES = 2
    FUNCTIONS = 3


class Run(NamedTuple):
    """So many steps, looked at on the same level."""

    level: Level
    steps: int = 1


class Ended(NamedTuple):
    """A run that has ended, and what is known of it.

    spans: calls, and backward passes of calls, that were measured, or watched.
    pauses: those of them from outside of all others, and whole backward passes.
    aside_ns: what we did between runs and blocks, and to find sites for new calls.
    is_training: whether these were training steps, or evaluation calls, which are only
        compared with each other; None: some of each.
    """

    run: Run
    duration_ns: int
    spans: int = 0
    pauses: int = 0
    aside_ns: int = 0
    is_training: bool | None = True


class CountedCosts(NamedTuple):
    """Nanoseconds that things cost, before anything is known of the program and the
    machine.

    step: seeing its end.
    watched: seeing the end of a call from outside besides.
    pause: timing that, or a backward pass, or a step of an optimizer, as a whole.
    span: each call of a module or function, and each backward pass of one; also where
        only calls from outside are wanted, of a module that is called from outside at
        other times.
    """

    step: int
    watched: int
    pause: int
    span: int


class _Trivial:
    """What a machine is timed with: a call of Python's, as hooks are made of."""

    def __call__(self, value: int) -> int:
        return self.same(value)

    def same(self, value: int) -> int:
        return value


#: What was measured in a program of many short calls, where caches are cold, in calls
#: of `_Trivial`: machines differ by several times, and so do quiet and busy ones.
_IN_TRIVIAL_CALLS: Final = {
    "python": CountedCosts(50, 200, 280, 78),
    "native": CountedCosts(50, 125, 230, 31),
}[CORE.name]
#: What such a call takes where nothing is known of the machine.
USUAL_NS: Final = 60.0
#: How often it is timed, and how many calls in a row; the shortest time counts.
_TIMES: Final = 9
_IN_A_ROW: Final = 50


def trivial_call_ns() -> float:
    """How long a trivial call takes on this machine now. To see that takes 50 us."""
    call, shortest_ns = _Trivial(), float("inf")
    for _ in range(_TIMES):
        start_ns = perf_counter_ns()
        for value in range(_IN_A_ROW):
            call(value)
        shortest_ns = min(shortest_ns, perf_counter_ns() - start_ns)
    return shortest_ns / _IN_A_ROW or USUAL_NS


def counted_costs(call_ns: float) -> CountedCosts:
    """What things cost where a trivial call takes so long."""
    return CountedCosts(*(round(call_ns * calls) for calls in _IN_TRIVIAL_CALLS))


#: Differences that are remembered; how many tell enough to believe in a lower cost than
#: the counted one, and how many, in a higher one.
_REMEMBERED: Final = 64
ENOUGH: Final = 8
_FEW: Final = 3
#: How much of what is known of steps counts when the next ones are known: some fifty
#: runs tell.
_KEPT: Final = 0.98


class Prices:
    """What a step costs on each level.

    The price is the difference of its duration and that of the last step without, in
    the median, and the standard error of that: otherwise, the lower chance makes the
    estimate, the more is measured. As long as this is not known, the price is the
    counted one; it is never taken to be less than half of that.

    counted: what things cost on this machine; by default it is timed.
    bare: the level that others are compared with.
    """

    def __init__(self, counted: CountedCosts | None = None) -> None:
        self.bare = Level.STEPS
        self.watches = True  # calls, where only the ends of steps are seen
        self._counted = counted or counted_costs(trivial_call_ns())
        self._spans = dict.fromkeys(Level, 0.0)  # of a step
        self._pauses = self._watched = 0.0  # the same; and of those only watched
        self._lately_pauses = self._lately_ns = 0.0
        self._inside = 0.0  # watched calls inside of each that is from outside
        # By kind: a step of the last bare run, and what others took longer.
        self._bare_ns: dict[bool, float] = {}
        self._longer_ns: defaultdict[tuple[Level, bool | None], deque[float]] = (
            defaultdict(lambda: deque(maxlen=_REMEMBERED))
        )

    def counted_ns(self, level: Level) -> float:
        """The counted price of a step, as of the last one on this level."""
        pauses = self._watched if level == Level.STEPS else self._pauses
        return self._counted_ns(level, 1, self._spans[level], pauses)

    def counted(self, ended: Ended) -> float:
        """The counted price of a run."""
        (level, steps), _, spans, pauses, _, _ = ended
        return self._counted_ns(level, steps, spans, pauses)

    def watching_share(self) -> float:
        """What it would cost to watch calls, as a share of the time of the steps around
        them: training steps and evaluation calls as they come."""
        call_ns = self._counted.watched + self._counted.span * self._inside
        return call_ns * self._lately_pauses / max(self._lately_ns, 1.0)

    def compare_with(self, level: Level) -> None:
        """From now on, other levels are compared with this one."""
        if level != self.bare:
            self.bare = level
            self._bare_ns.clear()
            self._longer_ns.clear()

    def known(self, level: Level, is_training: bool | None) -> int:
        """How many differences are remembered."""
        return len(self._longer_ns[level, is_training])

    def of(self, ended: Ended) -> float:
        """What it has cost to look at these steps, in nanoseconds."""
        (level, steps), duration_ns, spans, pauses, _, kind = ended
        self._spans[level] = spans / steps
        counted_ns = self.counted(ended)
        if level == Level.STEPS:
            self._watched = pauses / steps
            self._inside = spans / pauses - 1 if pauses else self._inside
        else:
            self._pauses = pauses / steps
            bare_ns = max(duration_ns - counted_ns, 0)
            self._lately_pauses = _KEPT * self._lately_pauses + pauses
            self._lately_ns = _KEPT * self._lately_ns + bare_ns
        longer_ns = self._longer_ns[level, kind]
        if level == self.bare:
            if kind is not None:
                self._bare_ns[kind] = duration_ns / steps
        elif kind in self._bare_ns:
            longer_ns.append(duration_ns / steps - self._bare_ns[kind])
        known = len(longer_ns)
        if known < _FEW or level <= self.bare:
            return counted_ns
        seen_ns = steps * (_at_most(longer_ns) + self.counted_ns(self.bare))
        return max(seen_ns, counted_ns / 2 if known >= ENOUGH else counted_ns)

    def _counted_ns(
        self, level: Level, steps: int, spans: float, pauses: float
    ) -> float:
        of_steps, watched, of_pauses, of_spans = self._counted
        if level == Level.STEPS:
            inside = of_spans * max(spans - pauses, 0)
            return steps * of_steps + watched * pauses + inside
        return of_pauses * pauses + (of_spans * spans if level > Level.PHASES else 0)


def _at_most(values: Collection[float]) -> float:
    """The median and its standard error, which is 1.253 times that of the mean if
    values are spread normally, with 1.349 standard deviations between the quartiles."""
    ordered, count = sorted(values), len(values)
    between_quartiles = ordered[3 * count // 4] - ordered[count // 4]
    return ordered[count // 2] + 1.253 * between_quartiles / 1.349 / sqrt(count)
