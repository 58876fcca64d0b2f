"""Which steps are looked into, and how closely, for a limited price."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from math import ceil
from random import Random
from typing import Final

from torchprof_hooks.capture.sampling.levels import Ended, Level, Run
from torchprof_hooks.capture.sampling.prices import ENOUGH, Prices

#: The earnings of so many steps may be saved up, to be spent at once.
_MOST_STEPS: Final = 50

#: Steps that are looked into in a row: in the first one of them, our code and data are
#: not in the processor's caches yet. They are fewer as long as little is known.
_LONGEST_RUN: Final = 4
#: Share of runs that are not looked into although they could be, to compare with.
_COMPARED: Final = 0.05
#: Steps after which to see again whether there is something to spend.
_LONGEST_WAIT: Final = 64
#: How much more than it has earned a run may cost that is not over, once it is so many
#: times as long as the longest step: nobody knows when it will end. Evaluations before
#: the first step may cost as much more.
_MOST_AHEAD_NS: Final = 1_000_000_000
_MUCH_LONGER: Final = 4
#: Steps that are looked into as closely as possible before they are paid for, if there
#: is a lower level to look on: the first step alone, when caches are cold, tells
#: little. What they cost is saved afterwards.
_EARLY: Final = tuple(4**n for n in range(1, 12))
#: How many steps and evaluations in a row to look at, at most, for a training step.
_LONGEST_LOOK: Final = 8


class Savings:
    """The time that steps have earned for measuring, less what measuring has cost. That
    may be below zero, since costs are known afterwards.

    random: a generator of our own; that of the program must not change.
    spent_ns: all costs, as far as they are known.
    """

    def __init__(self, random: Random) -> None:
        self.spent_ns = 0.0
        self._random = random
        self._left_ns = 0.0

    def is_overdrawn(self, by_ns: float = 0.0) -> bool:
        """Whether more has been spent than earned, and by more than `by_ns`."""
        return self._left_ns < -by_ns

    def earn(self, income_ns: float, steps: int = 1) -> None:
        """So many steps have earned `income_ns` together."""
        most_ns = _MOST_STEPS * income_ns / steps
        self._left_ns = min(self._left_ns + income_ns, most_ns)

    def spend(self, cost_ns: float) -> None:
        """Something of ours has taken time."""
        self.spent_ns += cost_ns
        self._left_ns -= cost_ns

    def steps_to_wait(self, income_ns: float, longest: int) -> int:
        """How many steps to wait until there is something to spend again, and up to
        twice as many: at random, not to fall into a rhythm of the program.

        income_ns: what each of these steps earns.
        longest: at most so many, before the random part.
        """
        steps = longest
        if income_ns > 0:
            steps = min(ceil(-self._left_ns / income_ns), longest)
        return steps + self._random.randint(0, steps)


class EarlyLooks:
    """When to look closely at the next steps before that is paid for.

    Until the first training step, evaluations count; from then on, training steps alone
    do: what a program does before it learns, as in reinforcement learning, says nothing
    of backward passes. Where evaluations come between training steps, a look is long
    enough for both.

    is_wanted: whether there are such looks.
    """

    def __init__(self, is_wanted: bool) -> None:
        self._due = deque(_EARLY if is_wanted else ())
        self._trained = self._evaluations = 0

    def count(self, steps: int, evaluations: int) -> None:
        """So many steps have ended, of which so many are evaluation calls."""
        trained = max(steps - evaluations, 0)
        if trained and not self._trained:
            if self._evaluations and self._due:
                self._due = deque((1, *_EARLY))
            self._evaluations = 0
        self._trained += trained
        self._evaluations += evaluations

    @property
    def steps_left(self) -> int | None:
        """How many steps come before the next look, at least; None if none comes."""
        return self._due[0] - self._counted if self._due else None

    def take(self) -> int:
        """How many steps to look at now; 0: it is too early for that."""
        if not self._due or self._counted < self._due[0]:
            return 0
        self._due.popleft()
        between = ceil(self._evaluations / self._trained) if self._trained else 0
        return min(1 + between, _LONGEST_LOOK)

    @property
    def _counted(self) -> int:
        return self._trained or self._evaluations


class Scheduler:
    """Chooses the level of the next steps.

    Looking spends from a budget, to which each step adds a share of its duration. By
    counted prices, which may be wrong, phases may take half of that in every step; and
    modules are looked into in every step if that takes a quarter at most. While there
    is something to spend, steps are looked into: in modules, and once in a while, if as
    much was spent on these, in functions; and where phases are too dear for every step,
    as much goes into timing these in some.

    Steps are drawn at random around their turn: programs have rhythms of their own
    (every second step is that of a GAN's generator), which a fixed one could follow.

    max_overhead: that share; from 1 on, costs have no limit.
    levels: those that are wanted, from the lowest to the highest.
    every: of two levels above phases, the higher one is chosen in one step of so many
        at most, on average; and in the first.
    savings: what may be spent, and what has been.
    """

    def __init__(
        self,
        max_overhead: float,
        levels: Sequence[Level],
        every: int = 1,
        prices: Prices | None = None,
    ) -> None:
        self.levels = tuple(levels)
        self.prices = prices or Prices()
        self._looks = [level for level in levels if level > Level.PHASES]
        self._max_overhead = max_overhead
        self._every = every
        self._random = Random(0)  # not the program's
        self.savings = Savings(self._random)
        self._spent: Counter[Level] = Counter()
        self._steps = self._steps_to_top = 0
        has_early = 0 < max_overhead < 1 and len(self._looks) > 1
        self._early = EarlyLooks(has_early)
        self._longest_run = 1
        self._longest_ns = 0.0  # of steps; of the first one while there is no other

    @property
    def top(self) -> Level:
        """The highest level."""
        return self.levels[-1]

    def begin(self, warm_up: Ended) -> Run:
        """The first step is over, looked at on the highest level; its duration tells
        nothing of others. Returns how to look at the next."""
        self._longest_ns = warm_up.duration_ns
        self.savings.earn(self._max_overhead * warm_up.duration_ns)
        cost_ns = self.prices.first(warm_up)
        self.savings.spend(cost_ns + warm_up.aside_ns)
        self._steps_to_top = self._draw_turn()
        return Run(self.top)

    def next(self, ended: Ended, least: Level) -> Run:
        """How to go on.

        least: the lowest level that there is to choose now.
        """
        steps = ended.run.steps
        before_ns = self._longest_ns if self._steps else 0.0
        self._longest_ns = max(ended.duration_ns / steps, before_ns)
        self._steps += steps
        self._early.count(steps, ended.evaluations)
        self._steps_to_top -= steps
        income_ns = self._book(ended) / steps
        bare = self._bare_level(least, income_ns)
        self.prices.compare_with(bare)
        self.prices.choose_watching(self._max_overhead)
        if early := self._early.take():
            return Run(self.top, early)
        if self._max_overhead < 1 and bare < self.top:
            if self.savings.is_overdrawn():
                return Run(bare, self._steps_to_wait(income_ns, bare))
            if self._must_compare(bare, ended.is_training):
                return Run(bare)
        if self._is_turn_of_phases(bare):
            return Run(Level.PHASES, _LONGEST_RUN)
        return self._look(bare)

    def lets_wait(self, ended: Ended) -> bool:
        """An evaluation has ended that came before the first step. Returns whether to
        look at the next as closely: until costs are too far ahead of earnings."""
        if self._max_overhead < 1 and self.savings.is_overdrawn(_MOST_AHEAD_NS):
            return False
        self.savings.earn(self._max_overhead * ended.duration_ns)
        self.savings.spend(self.prices.counted(ended) + ended.aside_ns)
        return True

    def is_out_of_hand(self, running: Ended) -> bool:
        """Whether a run that is not over should cost no more. Otherwise, long runs are
        paid for afterwards.

        running: as if it ended now.
        """
        if self._max_overhead >= 1 or (
            running.duration_ns < _MUCH_LONGER * self._longest_ns
        ):
            return False
        earned_ns = self._max_overhead * running.duration_ns
        return self.prices.counted(running) - earned_ns > _MOST_AHEAD_NS

    def _is_turn_of_phases(self, bare: Level) -> bool:
        """Whether to time phases next: if they are not timed in all steps, as much is
        spent on them as on modules. Not looked into, outermost calls take as long as
        without us; and timing many steps costs no more than looking into one."""
        is_possible = bare < Level.PHASES and Level.PHASES in self.levels
        if self._max_overhead >= 1 or not is_possible:
            return False
        return self._spent[Level.PHASES] < self._spent[self._looks[0]]

    def _bare_level(self, least: Level, income_ns: float) -> Level:
        """The level for steps that are not looked into."""
        found = least
        for level in self.levels:
            share = 0.5 if level <= Level.PHASES else 0.25
            is_known = level <= Level.PHASES or self._spent[level]
            fits = self.prices.counted_ns(level) <= share * income_ns
            if least < level <= self._looks[0] and is_known and fits:
                found = level
        return found

    def _look(self, bare: Level) -> Run:
        """Look at the steps that come more closely than needed."""
        lower = self._looks[0]
        # Each level gets half of what there is, or nothing would be left for the lower
        # one; unless all steps are looked at on the lower one anyway.
        is_fair = self._spent[self.top] <= self._spent[lower] or lower == bare
        is_turn = self._steps_to_top <= 0 and (is_fair or self._max_overhead >= 1)
        if lower < self.top and is_turn:
            self._steps_to_top = self._draw_turn()
            return Run(self.top)
        steps = self._longest_run
        self._longest_run = min(2 * steps, _LONGEST_RUN)
        if lower < self.top and self._steps_to_top > 0:
            steps = min(steps, self._steps_to_top)
        return Run(lower, steps)

    def _steps_to_wait(self, income_ns: float, bare: Level) -> int:
        left_ns = income_ns - self.prices.counted_ns(bare)
        steps = self.savings.steps_to_wait(left_ns, _LONGEST_WAIT)
        left = self._early.steps_left
        return steps if left is None else min(steps, left)

    def _must_compare(self, bare: Level, is_training: bool | None) -> bool:
        level = next(level for level in self._looks if level > bare)
        is_known = self.prices.known(level, is_training) >= ENOUGH
        return self._random.random() < (_COMPARED if is_known else 0.5)

    def _draw_turn(self) -> int:
        return self._random.randint((self._every + 1) // 2, self._every * 3 // 2)

    def _book(self, ended: Ended) -> float:
        """Returns what the steps have earned."""
        level, steps = ended.run
        cost_ns = self.prices.of(ended)
        self._spent[level] += round(cost_ns)
        spent_ns = cost_ns + ended.aside_ns
        income_ns = self._max_overhead * max(ended.duration_ns - spent_ns, 0)
        # No debts for bare steps that are too short to earn their own cost.
        is_bare = level == self.prices.bare
        self.savings.earn(max(income_ns, cost_ns) if is_bare else income_ns, steps)
        self.savings.spend(spent_ns)
        return income_ns
