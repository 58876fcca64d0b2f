"""How closely to look at each step, for a limited price."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from enum import IntEnum
from random import Random
from typing import Final, NamedTuple

from torchprof_hooks.capture.sampling.savings import Savings


class Detail(IntEnum):
    """How closely a step is looked at: at whole passes, at modules, or at functions."""

    PHASES = 0
    MODULES = 1
    FUNCTIONS = 2


#: Nanoseconds that a closed span of a module or function costs, before anything is
#: known of the program and the machine: what was measured with GPT-2, where the caches
#: are cold. The cost is never taken to be less than half of that.
NANOSECONDS_PER_SPAN: Final = 6000
#: The same for a step that is looked at in phases: each span of it goes a longer way.
#: Every step pays that for a forward, a backward and an optimizer.
NANOSECONDS_PER_PHASE: Final = 35_000
_ALWAYS_NS: Final = 3 * NANOSECONDS_PER_PHASE
#: Durations that are remembered of each detail, and how many make a median.
_REMEMBERED: Final = 32
_ENOUGH: Final = 8
#: Share of steps that are looked at in phases although more could be afforded.
_RENEWED: Final = 0.05
#: Steps after which to see again whether there is something to spend.
_LONGEST_WAIT: Final = 32


#: Steps in which functions are looked at although that is not paid for yet: the first
#: one alone, when caches are cold, tells little. What they cost is saved afterwards.
_EARLY: Final = tuple(4**n for n in range(1, 12))


class Turn(NamedTuple):
    """So many steps, looked at in the same detail."""

    detail: Detail
    steps: int = 1


class Pace:
    """Chooses the detail of the next step.

    Measuring spends from a budget, to which each step adds a share of its duration.
    While it is overdrawn, steps are looked at in phases only. What a measured step
    costs is taken from its number of spans at first; once there are enough durations to
    compare, from these.

    Steps are drawn at random around their turn: programs have rhythms of their own
    (every second step is that of a GAN's generator), which a fixed one could follow.

    max_overhead: the share; from 1 on, there is no budget.
    every: functions are looked at in one step of so many at most, on average; and in
        the first.
    most: the highest detail there is.
    savings: what may be spent, and what has been.
    """

    def __init__(self, max_overhead: float, every: int, most: Detail) -> None:
        self._max_overhead = max_overhead
        self._every = every
        self._most = most
        self._durations: defaultdict[Detail, deque[int]] = defaultdict(
            lambda: deque(maxlen=_REMEMBERED)
        )
        self._is_limited = max_overhead < 1
        self._steps_to_functions = 0
        self._steps = 0
        self._early = deque(_EARLY if max_overhead else ())
        self._random = Random(0)  # not the program's
        self._spent: Counter[Detail] = Counter()
        self.savings = Savings(self._random)

    def next(self, ended: Turn, duration_ns: int, spans: int, least: Detail) -> Turn:
        """How to look at the next steps.

        Args:
            ended: the steps that just ended.
            duration_ns: what they took together.
            spans: how many calls, and backward passes of calls, were measured in them.
            least: the lowest detail that may be chosen.
        """
        step_ns = duration_ns // ended.steps
        self._durations[ended.detail].append(step_ns)
        cost_ns = self._cost_ns(ended, spans)
        self._spent[ended.detail] += round(cost_ns)
        self._book(duration_ns, cost_ns, ended.steps)
        self._steps_to_functions -= ended.steps
        self._steps += ended.steps
        if self._early and self._steps >= self._early[0]:
            self._early.popleft()
            return Turn(self._most)
        if self._is_limited and least == Detail.PHASES:
            if self.savings.is_overdrawn:
                return Turn(Detail.PHASES, self._steps_to_wait(step_ns))
            if self._must_compare():
                return Turn(Detail.PHASES)
        return Turn(self._choose())

    def begin(self) -> Turn:
        """How to look at the first step after the warm-up."""
        self._steps_to_functions = self._draw_turn()
        return Turn(self._most)

    def book_warm_up(self, duration_ns: int, spans: int) -> None:
        """The first step is over, whose duration tells nothing."""
        self._book(duration_ns, NANOSECONDS_PER_SPAN * spans)

    def _choose(self) -> Detail:
        is_due = self._steps_to_functions <= 0
        # Each gets half of what there is, or there would be nothing left for modules.
        is_fair = self._spent[Detail.FUNCTIONS] <= self._spent[Detail.MODULES]
        if not is_due or (self._is_limited and not is_fair):
            return Detail.MODULES
        self._steps_to_functions = self._draw_turn()
        return self._most

    def _steps_to_wait(self, step_ns: int) -> int:
        income_ns = self._max_overhead * step_ns - _ALWAYS_NS
        steps = self.savings.steps_to_wait(income_ns, _LONGEST_WAIT)
        return min(steps, self._early[0] - self._steps) if self._early else steps

    def _must_compare(self) -> bool:
        """Whether a step should be looked at in phases for the sake of its duration."""
        is_known = len(self._durations[Detail.PHASES]) >= _ENOUGH
        return self._random.random() < (_RENEWED if is_known else 0.5)

    def _draw_turn(self) -> int:
        return self._random.randint((self._every + 1) // 2, self._every * 3 // 2)

    def _book(self, duration_ns: int, cost_ns: float, steps: int = 1) -> None:
        self.savings.earn(self._max_overhead * max(duration_ns - cost_ns, 0), steps)
        self.savings.spend(cost_ns)

    def _cost_ns(self, ended: Turn, spans: int) -> float:
        detail = ended.detail
        if detail == Detail.PHASES:
            return NANOSECONDS_PER_PHASE * spans
        cost_ns: float = NANOSECONDS_PER_SPAN * spans
        bare, measured = self._durations[Detail.PHASES], self._durations[detail]
        if len(bare) >= _ENOUGH and len(measured) >= _ENOUGH:
            cost_ns = max(_median(measured) - _median(bare), cost_ns / 2)
        return _ALWAYS_NS + cost_ns


def _median(values: Iterable[int]) -> float:
    """Python's own takes as long to import as all that is sampled here."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2
