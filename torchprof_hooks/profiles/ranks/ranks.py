"""The ranks of a run: what `load_ranks` returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torchprof_hooks.profiles.names import GROUPINGS, Grouping, check_grouping
from torchprof_hooks.profiles.options import check_path
from torchprof_hooks.profiles.ranks.exchanged import RankCollective, exchanged
from torchprof_hooks.profiles.ranks.peers import peers
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.ranks.run import StaleRank, read_run
from torchprof_hooks.profiles.ranks.skew import SkewRow, skew_rows
from torchprof_hooks.profiles.ranks.verdict import Verdict, find_verdict
from torchprof_hooks.profiles.reportable import ReportableRanks


@dataclass(frozen=True, eq=False)
class Ranks(ReportableRanks):
    """The ranks of one run, side by side.

    ranks: those that have a file, in their order.
    world_size: how many there are.
    missing: those that have none.
    stale: those whose files are older than the others' by more than two flushes.
    notes: files that were left out, and why; and what else is to be known.
    """

    ranks: tuple[Rank, ...]
    world_size: int
    missing: tuple[int, ...] = ()
    stale: tuple[StaleRank, ...] = ()
    notes: tuple[str, ...] = ()

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

    @cached_property
    def peers(self) -> tuple[tuple[int, ...], ...]:
        """Groups of places in `ranks`, of those that do the same work: all, unless a
        device mesh says that some are other stages of a pipeline."""
        return peers(self.ranks)

    @cached_property
    def collectives(self) -> tuple[RankCollective, ...]:
        """What ranks exchange, by function and group, the most time first."""
        return exchanged(self.ranks)

    @cached_property
    def verdict(self) -> Verdict:
        """Which rank the others wait for, and where it spends that. Ranks that are
        stale are not compared, unless all of them are; others with their peers, and of
        several verdicts this is the one about most time."""
        stale = {each.rank for each in self.stale}
        live = [rank for rank in self.ranks if rank.number not in stale] or self.ranks
        groups = [[live[place] for place in group] for group in peers(live)]
        if len(groups[0]) == len(self.ranks):
            return find_verdict(self.ranks, self.rows("module"))
        found = [find_verdict(group, skew_rows(group, "module")) for group in groups]
        return max(
            found, key=lambda verdict: (verdict.rank is not None, verdict.lost_ns)
        )

    def _reported_ranks(self) -> Ranks:
        return self


def load_ranks(folder: str | Path) -> Ranks:
    """The ranks of the newest run that has files in a folder, as ``--save`` and
    ``profile(save=...)`` write them.

    Raises:
        ProfileFileError: the folder has no file of any rank.
        OSError: it is no folder, or cannot be read.

    Example:
        >>> ranks = torchprof_hooks.load_ranks("profiles")
        >>> ranks.verdict.rank, ranks.verdict.reason.row
        (2, 'Net.head')
        >>> print(ranks)
    """
    return Ranks(*read_run(check_path("folder", folder)))
