"""The ranks of a run: which profiles are theirs, which are left out, and which ranks
are missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import NamedTuple

from torchprof_hooks.profiles.names import GROUPINGS, Grouping, check_grouping
from torchprof_hooks.profiles.provenance import Provenance
from torchprof_hooks.profiles.ranks.peers import peers
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.ranks.skew import (
    RankCollective,
    SkewRow,
    exchanged,
    skew_rows,
)
from torchprof_hooks.profiles.ranks.verdict import Verdict, find_verdict

#: The time between writes that is assumed for a file that does not say it.
_USUAL_FLUSH_NS = 60_000_000_000


class StaleRank(NamedTuple):
    """A rank whose file is too old: it may hang, or have died.

    age_ns: by how much its file is older than the newest one.
    steps: how many steps have ended.
    has_ended: whether the process wrote it at its end.
    """

    rank: int
    age_ns: int
    steps: int
    has_ended: bool


@dataclass(frozen=True, eq=False)
class RanksData:
    """The ranks of one run, side by side. The public class is `torchprof_hooks.Ranks`,
    which has a report, too.

    ranks: those that have a file, in their order.
    world_size: how many ranks the run has.
    missing: ranks that have no file.
    stale: ranks whose files are older than the newest by more than two flushes.
    notes: which files were left out, and why; and what makes ranks hard to compare.
    folder: the folder of the files.
    """

    ranks: tuple[Rank, ...]
    world_size: int
    missing: tuple[int, ...] = ()
    stale: tuple[StaleRank, ...] = ()
    notes: tuple[str, ...] = ()
    folder: str = ""

    def rows(self, by: Grouping = "module") -> tuple[SkewRow, ...]:
        """What the ranks spent in each row and phase, the largest skew first.

        by: see `Profile.rows`.

        Raises:
            TypeError, ValueError: `by` is not one of these.
        """
        check_grouping(by, GROUPINGS)
        if by not in self._rows:
            self._rows[by] = skew_rows(self.ranks, by, self.peers)
        return self._rows[by]

    @cached_property
    def _rows(self) -> dict[Grouping, tuple[SkewRow, ...]]:
        return {}

    def path_of(self, number: int) -> str:
        """The path of the file of a rank."""
        [name] = (rank.name for rank in self.ranks if rank.number == number)
        return str(PurePath(self.folder, name))

    @cached_property
    def peers(self) -> tuple[tuple[int, ...], ...]:
        """Groups of ranks that do the same work, as indices into `ranks`: one group,
        unless a device mesh tells that ranks do different work, such as the stages of a
        pipeline."""
        return peers(self.ranks)

    @cached_property
    def collectives(self) -> tuple[RankCollective, ...]:
        """What ranks exchange, by function and group, the most time first."""
        return exchanged(self.ranks)

    @cached_property
    def verdict(self) -> Verdict:
        """Which rank the others wait for, and where it spends that time. Stale ranks
        are left out, unless all are stale. Ranks are compared with their peers only. Of
        the verdicts on several groups of peers, this is one that names a rank, if any
        does, and of these the one with the most lost time."""
        stale = {each.rank for each in self.stale}
        live = [rank for rank in self.ranks if rank.number not in stale] or self.ranks
        groups = [[live[place] for place in group] for group in peers(live)]
        if len(groups[0]) == len(self.ranks):
            return find_verdict(self.ranks, self.rows("module"))
        found = [find_verdict(group, skew_rows(group, "module")) for group in groups]
        return max(
            found, key=lambda verdict: (verdict.rank is not None, verdict.lost_ns)
        )


def run_of(
    found: Iterable[Rank], notes: Iterable[str] = (), folder: str = ""
) -> RanksData:
    """The newest run, with its ranks among those that were found."""
    by_age = sorted(found, key=lambda rank: -rank.provenance.written_ns)
    newest = by_age[0].provenance
    said = list(notes)
    kept: dict[int, Rank] = {}
    began_ns = newest.started_ns
    for rank in by_age:
        if not _is_same_run(rank.provenance, newest, began_ns):
            said.append(f"left out: {rank.name} is of another run")
            continue
        began_ns = min(began_ns, rank.provenance.started_ns)
        if rank.number not in kept:
            kept[rank.number] = rank
        else:
            one, other = sorted((kept[rank.number], rank), key=lambda r: -r.steps)
            kept[rank.number] = one
            said.append(f"left out: {other.name}: {one.name} is of rank {rank.number}")
    ranks = tuple(kept[number] for number in sorted(kept))
    size = newest.world_size
    missing = tuple(number for number in range(size) if number not in kept)
    stale = tuple(_stale(ranks))
    return RanksData(ranks, size, missing, stale, (*said, *_differences(ranks)), folder)


def _is_same_run(one: Provenance, newest: Provenance, began_ns: int) -> bool:
    """Whether a rank is of the same run as the newest one: of the same job, in which
    runs follow each other, and not over before the run began. Only the scripts of their
    commands are compared: some launchers give each rank other arguments."""
    return _job(one) == _job(newest) and one.written_ns >= began_ns


def _job(one: Provenance) -> tuple[int, str, str]:
    return one.world_size, one.run, one.command.partition(" ")[0]


def _stale(ranks: tuple[Rank, ...]) -> Iterator[StaleRank]:
    """Ranks whose files are older than the newest by more than two flushes. A rank that
    has ended is not stale if no other rank has more steps."""
    newest_ns = max(rank.provenance.written_ns for rank in ranks)
    most = max(rank.steps for rank in ranks)
    for rank in ranks:
        found = rank.provenance
        age_ns = newest_ns - found.written_ns
        if found.has_ended and rank.steps >= most:
            continue
        if age_ns > 2 * (found.flush_ns or _USUAL_FLUSH_NS):
            yield StaleRank(rank.number, age_ns, rank.steps, found.has_ended)


def _differences(ranks: tuple[Rank, ...]) -> Iterator[str]:
    """Differences between ranks that are most likely mistakes, or that make rows hard
    to compare."""
    for what, values in (
        ("torch", {rank.provenance.torch for rank in ranks}),
        ("torchprof_hooks", {rank.provenance.package for rank in ranks}),
    ):
        if len(values) > 1:
            versions = ", ".join(sorted(values))
            yield f"ranks have different versions of {what}: {versions}"
    if len({rank.outermost for rank in ranks}) > 1:
        yield (
            "ranks call different models: where one does not call a module, that is 0 "
            "in the rows"
        )
