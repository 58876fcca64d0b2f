"""Tells which rank the others wait for, and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby, product
from math import isinf
from operator import attrgetter
from statistics import median
from typing import Final, Literal, NamedTuple

from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.phases import WAITING_PHASES
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.ranks.skew import SkewRow
from torchprof_hooks.profiles.step_times import MOST_SLOW

#: A rank is called slow only if others wait for it for more than this many standard
#: errors, and for more than this share of a step. Ranks are even only if that, and a
#: standard error, are below this share.
_ERRORS: Final = 4.0
_LEAST_SHARE: Final = 0.05
#: With fewer steps than this, others must wait for more than this share of a step.
_FEWEST_STEPS: Final = 5
_SHARE_OF_FEW: Final = 0.5
#: A row explains why a rank is slow if the rank spends more time in it than others, by
#: at least this share of the time that these wait.
_EXPLAINS: Final = 2 / 3
#: That ranks are held up in turns is told if it takes such a share of all steps.
_LEAST_IN_TURNS: Final = 0.01
#: Phases of rows that are no reason to wait for a rank.
_NO_REASONS: Final = (*WAITING_PHASES, "profiler")


class Reason(NamedTuple):
    """Where the slow rank spends the time that others wait; nanoseconds per step.

    row, phase: see `Row`; the phase is "" if it takes all of them to explain the time.
    is_own: whether the times are without inner calls, or with them.
    spent_ns: time of the slow rank there.
    others_ns: median of the other ranks' times there.
    """

    row: str
    kind: str
    phase: Phase | Literal[""]
    is_own: bool
    spent_ns: float
    others_ns: float

    @property
    def excess_ns(self) -> float:
        """How much more the slow rank spends than the others."""
        return self.spent_ns - self.others_ns


class Turns(NamedTuple):
    """Ranks that are held up in different steps, so that the others wait in each.

    ranks: these, by their numbers.
    phase: in which they are, mostly.
    steps: in how many steps one of them is, of those that were kept.
    more_ns: how much longer these take.
    is_least: whether there may be more: of each rank, the slowest steps are kept.
    """

    ranks: tuple[int, ...]
    phase: Phase
    steps: int
    more_ns: int
    is_least: bool


class Verdict(NamedTuple):
    """Which rank is slow; times in nanoseconds per step.

    rank: the one that the others wait for, None if there is none.
    busiest: the one that has most to do, which may be chance.
    also: other ranks that are as slow.
    lost_ns: the smaller of two numbers: by how much the own time of the slowest rank
        exceeds the median, and the median wait of the others.
    noise_ns: how much longer it may take by chance.
    step_ns: the duration of a step (median of the ranks).
    waiting_ns: the time that ranks wait and communicate (median).
    reason: where this rank spends the time; None if no row explains most of it.
    """

    rank: int | None
    busiest: int
    also: tuple[int, ...]
    lost_ns: float
    noise_ns: float
    step_ns: float
    waiting_ns: float
    reason: Reason | None

    @property
    def is_even(self) -> bool:
        """Whether no rank makes others wait for long, and steps are enough to know."""
        least_ns = _LEAST_SHARE * self.step_ns
        return self.lost_ns < least_ns and self.noise_ns < _ERRORS * least_ns


def find_verdict(ranks: Sequence[Rank], rows: Sequence[SkewRow]) -> Verdict:
    """Find the slow rank, and where it is slow.

    The others wait for the rank whose steps take longest without waiting, communication
    left out: as much longer as that takes, if they wait at all. By chance, the means of
    two ranks may differ by their standard errors (see `own_time_of`), times `_ERRORS`.

    rows: the rows of these ranks, by module.
    """
    own, waited = zip(
        *((each.own.mean_ns, each.waiting_ns) for each in ranks), strict=True
    )
    step_ns = median(rank.step_ns for rank in ranks)
    slow = max(range(len(ranks)), key=own.__getitem__)
    less = {n: own[slow] - ns for n, ns in enumerate(own) if n != slow}
    wait_ns = median(waited[n] for n in less) if less else 0.0
    lost_ns = min(median(less.values()), wait_ns) if less else 0.0
    noise_ns = _noise_ns(ranks, slow, step_ns)
    is_slow = lost_ns > noise_ns
    also = [n for n, ns in less.items() if is_slow and ns <= min(noise_ns, lost_ns / 2)]
    return Verdict(
        ranks[slow].number if is_slow else None,
        ranks[slow].number,
        tuple(ranks[n].number for n in also),
        lost_ns,
        noise_ns,
        step_ns,
        median(waited),
        _find_reason(rows, slow, {slow, *also}, lost_ns) if is_slow else None,
    )


def _noise_ns(ranks: Sequence[Rank], slow: int, step_ns: float) -> float:
    """How much longer the rank `slow` may take by chance. Errors add up: where ranks
    share a processor, one takes longer while the other does not. With few steps, the
    errors are not known well, and a share of a step is taken instead."""
    errors = [rank.own.error_ns for rank in ranks]
    error_ns = errors.pop(slow) + (median(errors) if errors else 0.0)
    if isinf(error_ns) or min(rank.steps for rank in ranks) < _FEWEST_STEPS:
        return _SHARE_OF_FEW * step_ns
    return max(_ERRORS * error_ns, _LEAST_SHARE * step_ns)


def _find_reason(
    rows: Sequence[SkewRow], slow: int, all_slow: set[int], lost_ns: float
) -> Reason | None:
    """The row and phase that explain most of the lost time: of the rows whose own time
    does, the one with the largest excess; else, the innermost row whose time with inner
    calls does. If a phase does not, all phases of a row may."""
    by_phase = [row for row in rows if row.phase not in _NO_REASONS]
    in_all = [*_of_all_phases(by_phase)]
    for is_own, tried in product((True, False), (by_phase, in_all)):
        found: list[Reason] = []
        for row in tried:
            times_ns = row.own_ns if is_own else row.total_ns
            others = [ns for n, ns in enumerate(times_ns) if n not in all_slow]
            spent_ns, others_ns = times_ns[slow], median(others)
            if spent_ns - others_ns >= _EXPLAINS * lost_ns:
                phase = "" if tried is in_all else row.phase
                where = row.name, row.kind, phase
                found.append(Reason(*where, is_own, spent_ns, others_ns))
        if found and is_own:
            return max(found, key=lambda reason: reason.excess_ns)
        if found:
            return min(_innermost(found), key=lambda reason: reason.excess_ns)
    return None


def _of_all_phases(rows: Sequence[SkewRow]) -> Iterator[SkewRow]:
    """For each row, one with the times of all its phases."""
    name = attrgetter("name")
    for _, each in groupby(sorted(rows, key=name), key=name):
        phases = [*each]
        own, total = (
            [sum(times) for times in zip(*columns, strict=True)]
            for columns in zip(*((p.own_ns, p.total_ns) for p in phases), strict=True)
        )
        yield replace(phases[0], own_ns=own, total_ns=total)


def find_turns(ranks: Sequence[Rank]) -> Turns | None:
    """The ranks that are held up in steps of their own: in most of what these take
    longer than usual, the rank does not wait. None if there are not two such ranks, or
    if it is little."""
    held = defaultdict[int, list[tuple[int, Counter[Phase]]]](list)
    for rank in ranks:
        for step in rank.slow_steps:
            more = Counter({each.phase: each.more_ns for each in step.phases})
            for phase in WAITING_PHASES:
                del more[phase]
            if 2 * more.total() >= step.more_ns:
                held[step.number].append((rank.number, more))
    alone = [found[0] for found in held.values() if len(found) == 1]
    times = sum((more for _, more in alone), Counter[Phase]())
    least_ns = _LEAST_IN_TURNS * max(rank.steps * rank.step_ns for rank in ranks)
    numbers = tuple(sorted({number for number, _ in alone}))
    if len(numbers) < 2 or times.total() < least_ns:
        return None
    [(phase, _)] = times.most_common(1)
    is_least = any(len(rank.slow_steps) >= MOST_SLOW for rank in ranks)
    return Turns(numbers, phase, len(alone), times.total(), is_least)


def _innermost(reasons: Sequence[Reason]) -> list[Reason]:
    """The reasons whose rows contain no other reason's row. A row around them can have
    a smaller excess, if by chance it had less to do elsewhere."""
    names = {reason.row for reason in reasons}
    around = {name for name in names if any(n.startswith(f"{name}.") for n in names)}
    return [reason for reason in reasons if reason.row not in around]
