"""How many steps may be measured, for a limited price."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from math import sqrt
from random import Random
from typing import Final, NamedTuple

from torchprof_hooks.capture.sampling.pace import NANOSECONDS_PER_SPAN
from torchprof_hooks.capture.sampling.savings import Savings

#: What it costs to see the end of a step that is not measured, about.
NANOSECONDS_PER_STEP: Final = 15_000
#: Steps that are measured in a row: in the first one of them, our code and data are not
#: in the processor's caches yet. They are fewer as long as little is known.
_LONGEST_RUN: Final = 4
#: Differences that are remembered; how many tell enough to believe in a lower cost than
#: that of the number of calls, and how many, in a higher one.
_REMEMBERED: Final = 64
_ENOUGH: Final = 8
_FEW: Final = 3
#: Share of runs that are not measured although they could be, to compare with.
_COMPARED: Final = 0.05
#: Steps after which to see again whether there is something to spend.
_LONGEST_WAIT: Final = 64


class Run(NamedTuple):
    """So many steps, all measured or none."""

    is_measured: bool
    steps: int = 1


class StepBudget:
    """Chooses which steps are measured.

    Measuring spends from a budget, to which each step adds a share of its duration;
    while it is overdrawn, nothing is measured. What a measured step costs is the
    difference of its duration and that of the last step without, in the median, and the
    standard error of that: otherwise, the lower chance makes the estimate, the more is
    measured. As long as this is not known, it is taken from the number of calls; it is
    never taken to be less than half of that.

    Steps are drawn at random around their turn: programs have rhythms of their own,
    which a fixed one could follow.

    max_overhead: the share.
    savings: what may be spent, and what has been.
    """

    def __init__(self, max_overhead: float) -> None:
        self._random = Random(0)  # not the program's
        self.savings = Savings(self._random)
        self._max_overhead = max_overhead
        # By kind: a step of the last run without, and what others took longer.
        self._bare_ns: dict[bool, float] = {}
        self._differences_ns: dict[bool | None, deque[float]] = {
            kind: deque(maxlen=_REMEMBERED) for kind in (False, True, None)
        }
        self._longest_run = 1

    def book_warm_up(self, duration_ns: int, spans: int) -> None:
        """The first step is over, measured; its duration tells nothing of others."""
        self.savings.earn(self._max_overhead * duration_ns)
        self.savings.spend(NANOSECONDS_PER_SPAN * spans)

    def next(
        self,
        ended: Run,
        duration_ns: int,
        spans: int,
        aside_ns: int,
        is_training: bool | None = True,
    ) -> Run:
        """How to go on after `ended`, which took so long, with so many spans closed.

        aside_ns: of ours, outside of steps.
        is_training: whether these were training steps, or evaluation calls, which are
            only compared with each other; None: some of each.
        """
        step_ns = duration_ns / ended.steps
        differences_ns = self._differences_ns[is_training]
        if is_training is not None and not ended.is_measured:
            self._bare_ns[is_training] = step_ns
        elif is_training in self._bare_ns:
            differences_ns.append(step_ns - self._bare_ns[is_training])
        cost_ns = self._cost_ns(ended, spans, differences_ns)
        self._book(ended, duration_ns, cost_ns + aside_ns)
        if self.savings.is_overdrawn:
            income_ns = self._max_overhead * step_ns - NANOSECONDS_PER_STEP
            return Run(False, self.savings.steps_to_wait(income_ns, _LONGEST_WAIT))
        if self._random.random() < _share_to_compare(len(differences_ns)):
            return Run(False)
        run = Run(True, self._longest_run)
        self._longest_run = min(2 * self._longest_run, _LONGEST_RUN)
        return run

    def _book(self, ended: Run, duration_ns: float, cost_ns: float) -> None:
        income_ns = self._max_overhead * duration_ns
        if not ended.is_measured:  # no debts for steps that are too short to earn that
            income_ns = max(income_ns, cost_ns)
        self.savings.earn(income_ns, ended.steps)
        self.savings.spend(cost_ns)

    def _cost_ns(
        self, ended: Run, spans: int, differences_ns: Collection[float]
    ) -> float:
        if not ended.is_measured:
            return NANOSECONDS_PER_STEP * ended.steps
        assumed_ns = NANOSECONDS_PER_SPAN * spans
        known = len(differences_ns)
        if known < _FEW:
            return assumed_ns
        seen_ns = ended.steps * _at_most(differences_ns)
        return max(seen_ns, assumed_ns / 2 if known >= _ENOUGH else assumed_ns)


def _share_to_compare(known: int) -> float:
    return _COMPARED if known >= _ENOUGH else 0.5


def _at_most(values: Collection[float]) -> float:
    """The median and its standard error, which is 1.253 times that of the mean if
    values are spread normally, with 1.349 standard deviations between the quartiles."""
    ordered, count = sorted(values), len(values)
    between_quartiles = ordered[3 * count // 4] - ordered[count // 4]
    return ordered[count // 2] + 1.253 * between_quartiles / 1.349 / sqrt(count)
