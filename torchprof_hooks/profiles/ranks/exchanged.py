"""What the ranks of a run exchange, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from torchprof_hooks.profiles.ranks.collectives import Collective, sum_of
from torchprof_hooks.profiles.ranks.rank import Rank


class RankCollective(NamedTuple):
    """Calls of one function, in groups of one name and size, by all ranks that make
    them; times in nanoseconds, of a call on average.

    sum: of all ranks.
    ranks: their numbers.
    call_ns: time in the call, without waiting.
    waiting_ns: waiting until it is complete.
    bytes_per_second: of each rank (see `Collective`).
    """

    sum: Collective
    ranks: Sequence[int]
    call_ns: Sequence[float]
    waiting_ns: Sequence[float]
    bytes_per_second: Sequence[float]

    @property
    def median_call_ns(self) -> float:
        return median(self.call_ns)

    @property
    def least_ns(self) -> float:
        return min(self.waiting_ns)

    @property
    def median_ns(self) -> float:
        return median(self.waiting_ns)

    @property
    def most_ns(self) -> float:
        return max(self.waiting_ns)

    @property
    def last_rank(self) -> int:
        """The rank that waits least: most likely, it comes last."""
        return self.ranks[self.waiting_ns.index(self.least_ns)]

    @property
    def fastest(self) -> float | None:
        """The most bytes per second that a rank sees: others may wait for late ranks in
        that time. None if no rate is known."""
        return max(self.bytes_per_second, default=None)


def exchanged(ranks: Sequence[Rank]) -> tuple[RankCollective, ...]:
    """What the ranks exchange, the most time first. Sums without calls are left out:
    they have no time per call."""
    found: dict[tuple[str, str, int], list[tuple[int, Collective]]] = {}
    for rank in ranks:
        for each in rank.collectives:
            if each.calls:
                found.setdefault(each[:3], []).append((rank.number, each))
    rows = [_row(members) for members in found.values()]
    return tuple(sorted(rows, key=lambda row: -row.sum.call_ns - row.sum.waiting_ns))


def _row(members: list[tuple[int, Collective]]) -> RankCollective:
    [total] = sum_of(each for _, each in members)
    rates = (each.bytes_per_second for _, each in members)
    return RankCollective(
        total,
        [number for number, _ in members],
        [each.call_ns / each.calls for _, each in members],
        [each.waiting_ns / each.calls for _, each in members],
        [rate for rate in rates if rate is not None],
    )
