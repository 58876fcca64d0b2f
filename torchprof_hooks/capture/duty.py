"""Chooses which steps of a run are measured, such that measuring keeps to a budget.

The first step is measured with all that is wanted. From then on, steps come in blocks:
one *on*, the next *off*, and so on. In an on block, all that is wanted is measured; in
an off block, only the time of forward, backward, optimizers and data, each as a whole,
which costs little. Off blocks are the control group: the steps of an on block take
longer than those of the off block before it, by what the on block costs more. What an
off block costs is counted, as there is nothing cheaper to compare it with.

These costs tell how long off blocks are, in relation to on blocks: so long that both
together keep to the budget, and at least a seventh. The shorter one of the two lasts
0.1 to 0.2 s, and has at least four steps. Lengths are random, so as not to fall into a
rhythm of the program.
"""

from __future__ import annotations

from collections import defaultdict, deque
from enum import Enum
from math import inf, sqrt
from random import Random
from typing import Final, NamedTuple

from numpy import median

#: A block has at least so many steps, and lasts at least so long: the first step after
#: a change is slower, as our code or the program's is not in the processor's caches.
LEAST_STEPS: Final = 4
LEAST_NS: Final = 100_000_000
#: A block is 1 to so many times as long as it has to be, at random.
LONGEST: Final = 2.0
_MEAN: Final = (1 + LONGEST) / 2
#: Off blocks are at least, and at most, so many times as long as on blocks: without any
#: off blocks, the cost could not be told; and without on blocks, an overestimated cost
#: would never be found out.
LEAST_OFF: Final = 1 / 7
MOST_OFF: Final = 200.0
#: The counted cost (calls times what a call costs in a trial) weighs as much as so many
#: comparisons of blocks.
PRIOR_BLOCKS: Final = 4
#: Only so many comparisons are remembered, as programs and machines change.
REMEMBERED: Final = 64
#: For a normal distribution: its standard deviation, divided by its median absolute
#: deviation; and the standard error of its median, divided by that of its mean.
_DEVIATIONS, _OF_MEDIAN = 1.483, 1.253


class Kind(Enum):
    """What is measured in a block."""

    OFF = "phases, each as a whole"
    ON = "all that is wanted"
    TRACED = "nothing: the steps are disturbed"


class Block(NamedTuple):
    """A block that is running, or has ended.

    trained, trained_ns: training steps in it, and the time they took.
    evaluated, evaluated_ns: the same of evaluation calls.
    counted_ns: how much of that time was measuring, by what was counted.
    """

    kind: Kind
    trained: int = 0
    trained_ns: int = 0
    evaluated: int = 0
    evaluated_ns: int = 0
    counted_ns: float = 0.0

    @property
    def steps(self) -> int:
        """How many steps and calls have ended."""
        return self.trained + self.evaluated

    @property
    def took_ns(self) -> int:
        """The time that its steps and calls took."""
        return self.trained_ns + self.evaluated_ns

    @property
    def counted(self) -> float:
        """The counted cost, as a share of the time without measuring."""
        return self.counted_ns / max(self.took_ns - self.counted_ns, 1)


class Plan(NamedTuple):
    """The next block: it has at least so many steps, and lasts at least so long."""

    kind: Kind
    steps: int = LEAST_STEPS
    lasts_ns: float = LEAST_NS

    def is_over(self, block: Block) -> bool:
        """Whether the block ends with the step, or the call, that has ended."""
        return block.steps >= self.steps and block.took_ns >= self.lasts_ns


class Cost(NamedTuple):
    """The time that measuring takes, as a share of the time without measuring, and the
    standard error of that: 0.0 if there are too few comparisons to tell."""

    share: float
    error: float = 0.0

    def of(self, ns: int) -> float:
        """How much of this time is measuring."""
        return ns * self.share / (1 + self.share)


class Duty:
    """Chooses block after block.

    max_overhead: the budget: the share of the time that measuring may take; from 1 on,
        all steps are measured.
    """

    def __init__(self, max_overhead: float) -> None:
        self._budget = max_overhead
        self._random = Random(0)  # not the program's
        self._off: Block | None = None  # the last one
        self._on_ns = 0  # of the last on block
        self._compared: defaultdict[Kind, deque[float]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED)
        )
        self._counted: dict[Kind, float] = {}  # in the last block of the kind
        self._took_ns: defaultdict[Kind, int] = defaultdict(int)
        self._start_ns = 0.0  # what the first step has cost

    @property
    def measures_all(self) -> bool:
        """Whether the budget has no limit."""
        return self._budget >= 1

    def begin(self, first: Block) -> Plan:
        """How to go on after the first step. Its duration tells nothing of others."""
        self._start_ns = first.counted_ns
        return Plan(Kind.ON)

    def next(self, ended: Block) -> Plan:
        """How to go on after a block."""
        if self.measures_all:
            return Plan(Kind.ON)
        self._learn(ended)
        off = self._off_share()
        if ended.kind is Kind.ON:
            # Such that blocks of the mean of the random lengths keep the budget.
            times = off * self._on_ns / LEAST_NS / _MEAN
            return self._draw(Kind.OFF, max(times, 1.0))
        # Nothing is known of the cost before there was an off block.
        return self._draw(Kind.ON, max(1 / off, 1.0) if self._off else 1.0)

    def cost(self, kind: Kind) -> Cost:
        """What blocks of this kind cost: the median of all comparisons, and of
        `PRIOR_BLOCKS` times the counted cost."""
        # Copies: another thread may ask.
        compared, counted = [*self._compared[kind]], self._counted.get(kind, 0.0)
        found = max(float(median([*compared, *[counted] * PRIOR_BLOCKS])), 0.0)
        if len(compared) <= PRIOR_BLOCKS:
            return Cost(found)
        middle = float(median(compared))
        spread = _DEVIATIONS * float(median([abs(each - middle) for each in compared]))
        return Cost(found, _OF_MEDIAN * spread / sqrt(len(compared)))

    def spent(self) -> tuple[float, float]:
        """The nanoseconds that all blocks so far have cost, and their standard
        error."""
        costs = [(ns, self.cost(kind)) for kind, ns in list(self._took_ns.items())]
        spent_ns = self._start_ns + sum(cost.of(ns) for ns, cost in costs)
        return spent_ns, sum(ns * cost.error for ns, cost in costs)

    def _learn(self, ended: Block) -> None:
        kind = ended.kind
        if kind is Kind.TRACED or not ended.took_ns:
            return
        self._took_ns[kind] += ended.took_ns
        self._counted[kind] = ended.counted
        if kind is Kind.OFF:
            self._off = ended
        elif self._off is not None:
            off = self.cost(Kind.OFF).share  # the off block has cost something, too
            for longer in _compared(ended, self._off):
                self._compared[kind].append((1 + longer) * (1 + off) - 1)
        if kind is Kind.ON:
            self._on_ns = ended.took_ns

    def _off_share(self) -> float:
        """How long off blocks are, in relation to on blocks."""
        budget = self._budget
        on, off = self.cost(Kind.ON).share, self.cost(Kind.OFF).share
        # With off blocks of that relative length, all together cost the budget.
        wanted = (on - budget) / (budget - off) if budget > off else inf
        return min(max(wanted, LEAST_OFF), MOST_OFF)

    def _draw(self, kind: Kind, times: float) -> Plan:
        """A block that is at least `times` as long as the shortest possible one."""
        times *= self._random.uniform(1.0, LONGEST)
        steps = LEAST_STEPS * (times if kind is Kind.ON else 1.0)
        return Plan(kind, round(steps), LEAST_NS * times)


def _compared(block: Block, off: Block) -> list[float]:
    """By which share the steps of a block took longer than those of the off block. Of
    training steps and evaluation calls, it compares those that both blocks have. Empty
    if there are none."""
    usual_ns, took_ns = 0.0, 0
    if block.trained and off.trained:
        usual_ns += block.trained * off.trained_ns / off.trained
        took_ns += block.trained_ns
    if block.evaluated and off.evaluated:
        usual_ns += block.evaluated * off.evaluated_ns / off.evaluated
        took_ns += block.evaluated_ns
    return [took_ns / usual_ns - 1] if usual_ns else []
