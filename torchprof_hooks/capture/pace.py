"""How closely to look at each step, for a limited price."""

from __future__ import annotations

from collections import defaultdict, deque
from enum import IntEnum
from random import Random
from statistics import median
from typing import Final


class Detail(IntEnum):
    """How closely a step is looked at: at whole passes, at modules, or at functions."""

    PHASES = 0
    MODULES = 1
    FUNCTIONS = 2


#: What hooks cost in a program is more than when they were calibrated, in a loop that
#: keeps them in the processor's caches: about twice as much for GPT-2.
COLD: Final = 2.0
#: Durations that are remembered of each detail, and how many make a median.
_REMEMBERED: Final = 32
_ENOUGH: Final = 8
#: Share of steps that are looked at in phases although more could be afforded.
_RENEWED: Final = 0.05
#: Steps' worth of saved-up budget that may be spent at once.
_SAVED_STEPS: Final = 20


class Pace:
    """Chooses the detail of the next step.

    Measuring spends from a budget, to which each step adds a share of its duration.
    While it is overdrawn, steps are looked at in phases only. What a measured step
    costs is taken from counts of hooked calls at first; once there are enough durations
    to compare, from these if they tell of more.

    Steps are drawn at random around their turn: programs have rhythms of their own
    (every second step is that of a GAN's generator), which a fixed one could follow.

    max_overhead: the share; from 1 on, there is no budget.
    every: functions are looked at in one step of so many at most, on average; and in
        the first.
    most: the highest detail there is.
    spent_ns: what measuring has cost, as far as is known.
    """

    def __init__(self, max_overhead: float, every: int, most: Detail) -> None:
        self._max_overhead = max_overhead
        self._every = every
        self._most = most
        self._durations: defaultdict[Detail, deque[int]] = defaultdict(
            lambda: deque(maxlen=_REMEMBERED)
        )
        self._saved_ns = 0.0
        self._is_limited = max_overhead < 1
        self._waited = 0
        self._steps_to_wait = 0
        self._steps_to_functions = 0
        self._random = Random(0)  # not the program's
        self.spent_ns = 0.0

    def next(
        self, ended: Detail, duration_ns: int, estimate_ns: float, least: Detail
    ) -> Detail:
        """The detail of the next step.

        Args:
            ended: that of the step that just ended.
            duration_ns: what it took.
            estimate_ns: what measuring it has cost, by calibrated counts.
            least: the lowest that may be chosen.
        """
        self._durations[ended].append(duration_ns)
        self._book(duration_ns, self._cost_ns(ended, estimate_ns))
        self._steps_to_functions -= 1
        chosen = self._choose()
        if chosen == Detail.FUNCTIONS:
            self._steps_to_functions = self._draw_turn()
        return max(chosen, least)

    def begin(self) -> Detail:
        """The detail of the first step after the warm-up."""
        self._steps_to_functions = self._draw_turn()
        return self._most

    def book_warm_up(self, duration_ns: int, estimate_ns: float) -> None:
        """The first step is over, of which nothing can be learned."""
        self._book(duration_ns, COLD * estimate_ns)

    def spend(self, cost_ns: int) -> None:
        """Something else of ours has taken time, between two steps."""
        self.spent_ns += cost_ns
        self._saved_ns -= cost_ns

    def _choose(self) -> Detail:
        if self._is_limited and (self._must_wait() or self._must_compare()):
            return Detail.PHASES
        return self._most if self._steps_to_functions <= 0 else Detail.MODULES

    def _must_wait(self) -> bool:
        if self._saved_ns < 0:
            self._waited += 1
            return True
        if self._waited:  # not as soon as possible
            self._steps_to_wait = self._random.randint(0, self._waited)
            self._waited = 0
        self._steps_to_wait -= 1
        return self._steps_to_wait >= 0

    def _must_compare(self) -> bool:
        """Whether a step should be looked at in phases for the sake of its duration."""
        is_known = len(self._durations[Detail.PHASES]) >= _ENOUGH
        return self._random.random() < (_RENEWED if is_known else 0.5)

    def _draw_turn(self) -> int:
        return self._random.randint((self._every + 1) // 2, self._every * 3 // 2)

    def _book(self, duration_ns: int, cost_ns: float) -> None:
        self.spent_ns += cost_ns
        income_ns = self._max_overhead * max(duration_ns - cost_ns, 0)
        most_ns = _SAVED_STEPS * income_ns
        self._saved_ns = min(self._saved_ns + income_ns, most_ns) - cost_ns

    def _cost_ns(self, detail: Detail, estimate_ns: float) -> float:
        if detail == Detail.PHASES:
            return estimate_ns
        bare, measured = self._durations[Detail.PHASES], self._durations[detail]
        if len(bare) < _ENOUGH or len(measured) < _ENOUGH:
            return COLD * estimate_ns
        return max(estimate_ns, median(measured) - median(bare))
