"""Who waits for whom: one answer, with its evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import isinf
from statistics import median
from typing import Final, NamedTuple

from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.ranks.rank import WAITING_PHASES, Rank
from torchprof_hooks.profiles.ranks.skew import SkewRow

#: Before a rank is called slow, others must wait this many standard errors for it, and
#: this share of a step.
_ERRORS: Final = 4.0
_LEAST_SHARE: Final = 0.05
#: With fewer steps than this, they must wait this share of a step.
_FEWEST_STEPS: Final = 5
_SHARE_OF_FEW: Final = 0.5
#: A row explains why a rank is slow if it has this share of what the others wait for.
_EXPLAINS: Final = 2 / 3
#: Phases of rows that are no reason to wait for a rank.
_NO_REASONS: Final = (*WAITING_PHASES, "profiler")


class Reason(NamedTuple):
    """Where the slow rank spends what others wait for; nanoseconds per step.

    row, phase: see `Row`; None for the sum of all phases.
    is_own: whether the row itself is slow, or the sum of all that it calls.
    spent_ns, others_ns: what the slow rank spends there, and the others (the median).
    """

    row: str
    kind: str
    phase: Phase | None
    is_own: bool
    spent_ns: float
    others_ns: float

    @property
    def excess_ns(self) -> float:
        """How much more the slow rank spends than the others."""
        return self.spent_ns - self.others_ns


#: A row, a phase or all of them, and what each rank spends there.
_Times = tuple[SkewRow, Phase | None, Sequence[float]]


class Verdict(NamedTuple):
    """The answer; times in nanoseconds per step.

    rank: the one that the others wait for, None if there is none.
    also: ranks that are as slow.
    lost_ns: how much longer the others wait than the rank that waits least (the median
        of them).
    noise_ns: how much longer they may wait by chance.
    step_ns: what a step takes.
    waiting_ns: what ranks spend in communication, the median.
    reason: None if no row explains most of it.
    """

    rank: int | None
    also: tuple[int, ...]
    lost_ns: float
    noise_ns: float
    step_ns: float
    waiting_ns: float
    reason: Reason | None


def find_verdict(ranks: Sequence[Rank], rows: Sequence[SkewRow]) -> Verdict:
    """Which rank is slow, and where.

    The rank that waits least, while others wait, is the one that they wait for. What
    all ranks spend in communication is its own cost, no waiting. Chance explains as
    much waiting as the means of two ranks may differ by, given how much the waiting
    differs from step to step (see `waits_of`).

    rows: by module, of these ranks.
    """
    waited = [rank.waits.mean_ns for rank in ranks]
    step_ns = median(rank.step_ns for rank in ranks)
    slow = min(range(len(ranks)), key=waited.__getitem__)
    excess = {n: ns - waited[slow] for n, ns in enumerate(waited) if n != slow}
    lost_ns = median(excess.values()) if excess else 0.0
    noise_ns = _noise_ns(ranks, slow, step_ns)
    is_slow = lost_ns > noise_ns
    also = [n for n, ns in excess.items() if is_slow and ns <= noise_ns]
    reason = _find_reason(rows, slow, {slow, *also}, lost_ns) if is_slow else None
    return Verdict(
        ranks[slow].number if is_slow else None,
        tuple(ranks[n].number for n in also),
        lost_ns,
        noise_ns,
        step_ns,
        median(waited),
        reason,
    )


def _noise_ns(ranks: Sequence[Rank], slow: int, step_ns: float) -> float:
    """How long others may wait for the rank `slow` by chance. Errors add up: when one
    rank waits longer by chance, the other waits less. A few steps do not show how much
    steps differ."""
    errors = [rank.waits.error_ns for rank in ranks]
    error_ns = errors.pop(slow) + (median(errors) if errors else 0.0)
    if isinf(error_ns) or min(rank.steps for rank in ranks) < _FEWEST_STEPS:
        return _SHARE_OF_FEW * step_ns
    return max(_ERRORS * error_ns, _LEAST_SHARE * step_ns)


def _find_reason(
    rows: Sequence[SkewRow], slow: int, all_slow: set[int], lost_ns: float
) -> Reason | None:
    """The row that explains most of what is lost: the slowest of those that are slow
    themselves; or else the innermost that is slow with all that it calls, in one phase,
    or in all phases together."""
    least_ns = _EXPLAINS * lost_ns

    def reasons(rows: Iterable[_Times], *, is_own: bool) -> Iterator[Reason]:
        for row, phase, times_ns in rows:
            spent_ns = times_ns[slow]
            if spent_ns >= least_ns:  # if not, neither can the excess be
                others = [ns for n, ns in enumerate(times_ns) if n not in all_slow]
                found = Reason(
                    *(row.name, row.kind, phase, is_own, spent_ns, median(others))
                )
                if found.excess_ns >= least_ns:
                    yield found

    rows = [row for row in rows if row.phase not in _NO_REASONS]
    own = ((row, row.phase, row.own_ns) for row in rows)
    if enough := [*reasons(own, is_own=True)]:
        return max(enough, key=lambda reason: reason.excess_ns)
    inside = ((row, row.phase, row.total_ns) for row in rows)
    for some in (inside, _all_phases(rows)):
        if enough := [*reasons(some, is_own=False)]:
            return min(_innermost(enough), key=lambda reason: reason.excess_ns)
    return None


def _innermost(reasons: Sequence[Reason]) -> list[Reason]:
    """The reasons whose rows contain no other reason's: rows around these may have a
    smaller excess, if by chance they had less to do elsewhere."""
    names = {reason.row for reason in reasons}
    around = {name for name in names if any(n.startswith(f"{name}.") for n in names)}
    return [reason for reason in reasons if reason.row not in around]


def _all_phases(rows: Sequence[SkewRow]) -> Iterator[_Times]:
    """For each name, one of its rows, and what each rank spends in all its phases."""
    by_name: dict[str, list[SkewRow]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    for some in by_name.values():
        times_ns = zip(*(row.total_ns for row in some), strict=True)
        yield some[0], None, [*map(sum, times_ns)]
