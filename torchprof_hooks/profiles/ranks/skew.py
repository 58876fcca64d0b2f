"""The times of all ranks side by side, by row and phase; and what ranks exchange."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import NamedTuple

from torchprof_hooks.profiles.cells import (
    CellKey,
    place_by,
    place_without_functions,
    with_others,
)
from torchprof_hooks.profiles.collectives import Collective, sum_of
from torchprof_hooks.profiles.many_shapes import common_names, renamed, with_infos
from torchprof_hooks.profiles.names import Grouping, Kind, Phase
from torchprof_hooks.profiles.phases import PHASES
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.rows import group_of, new_tree


@dataclass(frozen=True)
class SkewRow:
    """The time of each rank in one row and phase, in nanoseconds per step. A rank
    without the row has 0.

    name, kind, phase: see `Row`.
    own_ns: time without inner calls, of each rank.
    total_ns: time with inner calls, of each rank.
    places: positions in `own_ns` of the ranks that are compared: of all ranks, or of
        the group of peers (see `peers`) that differ most.
    worst: the position in `own_ns` of the compared rank with the most own time.
    """

    name: str
    kind: Kind
    phase: Phase
    own_ns: Sequence[float]
    total_ns: Sequence[float]
    places: Sequence[int]

    @cached_property
    def least_ns(self) -> float:
        return min(self._compared_ns)

    @cached_property
    def median_ns(self) -> float:
        """Of all but the worst: of two ranks, what the other one takes."""
        _, *others = sorted(self._compared_ns, reverse=True)
        return median(others or self._compared_ns)

    @cached_property
    def most_ns(self) -> float:
        return max(self._compared_ns)

    @property
    def worst(self) -> int:
        return max(self.places, key=self.own_ns.__getitem__)

    @property
    def _compared_ns(self) -> list[float]:
        return [self.own_ns[place] for place in self.places]

    @property
    def skew_ns(self) -> float:
        """By how much the worst rank is above the median of all others."""
        return self.most_ns - self.median_ns


class _Sums(NamedTuple):
    kind: Kind
    own_ns: list[float]
    total_ns: list[float]


def skew_rows(
    ranks: Sequence[Rank], by: Grouping, groups: Sequence[Sequence[int]] = ()
) -> tuple[SkewRow, ...]:
    """The rows of all ranks (see `Profile.rows`), the largest skew first.

    groups: positions of ranks that can be compared with each other, if not all can.
    """
    groups = groups or [range(len(ranks))]
    if by == "call":
        ranks = _with_common_names(ranks)
    sums: dict[tuple[str, Phase], _Sums] = {}
    columns: dict[CellKey, list[list[float]]] = {}  # to which each cell is added
    top, nothing = new_tree(), [0.0] * len(ranks)
    for number, rank in enumerate(ranks):
        infos = with_others(rank.infos)
        for key, cell_ns in rank.cells.items():
            if key not in columns:
                path, phase = place_by(by, key, infos)
                columns[key] = []
                around = [group_of(place, by) for place in top.at(path, infos)]
                # A dict: nested calls of one group count once.
                for name, group in {each.name: each for each in around}.items():
                    new = _Sums(group.info.kind, [*nothing], [*nothing])
                    row = sums.setdefault((name, phase), new)
                    columns[key].append(row.total_ns)
                columns[key].append(sums[around[-1].name, phase].own_ns)
            for column in columns[key]:
                column[number] += cell_ns
    rows = (
        max(
            (
                SkewRow(name, found.kind, phase, found.own_ns, found.total_ns, places)
                for places in groups
            ),
            key=lambda row: row.skew_ns,
        )
        for (name, phase), found in sums.items()
        if any(found.total_ns)
    )
    return tuple(sorted(rows, key=lambda row: (-row.skew_ns, row.name, row.phase)))


def _with_common_names(ranks: Sequence[Rank]) -> list[Rank]:
    """The same times, with one name for calls of a function in one module that differ
    in shapes, at one rank or between ranks: the same name at all ranks."""
    known = {name: info for rank in ranks for name, info in rank.infos.items()}
    names = common_names({key for rank in ranks for key in rank.cells}, known, kept=1)
    infos = with_infos(known, names)
    found = []
    for rank in ranks:
        cells: defaultdict[CellKey, float] = defaultdict(float)
        for (path, phase), cell_ns in rank.cells.items():
            cells[renamed(path, names, infos), phase] += cell_ns
        found.append(replace(rank, cells=cells, infos=infos))
    return found


def phase_times(rank: Rank) -> dict[Phase, float]:
    """The time of a rank by phase, in nanoseconds per step, the same with and without
    measured functions. The times add up to `step_ns`."""
    times = dict.fromkeys(PHASES, 0.0)
    for key, cell_ns in rank.cells.items():
        _, phase = place_without_functions(*key, rank.infos)
        times[phase] += cell_ns
    return times


class RankCollective(NamedTuple):
    """Calls of one function, in groups of one name and size, by all ranks that make
    them. Times are nanoseconds of an average call, one for each rank.

    sum: the sum over all ranks.
    ranks: the numbers of the ranks.
    call_ns: time in the call, without waiting.
    waiting_ns: time until it is complete.
    bytes_per_second: the rates that are known (see `Collective`).
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
        """The rank that waits least: most likely, it is the last to make the call."""
        return self.ranks[self.waiting_ns.index(self.least_ns)]

    @property
    def fastest(self) -> float | None:
        """The highest rate of a rank, in bytes per second: the times of other ranks may
        include waiting for late ranks. None if no rate is known."""
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
