"""What ranks did lately, while they run: between two files of each; and when that is
worth a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from torchprof_hooks.profiles.cells import CellKey, Infos
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.provenance import Provenance
from torchprof_hooks.profiles.ranks.rank import Rank, own_time_in
from torchprof_hooks.profiles.ranks.verdict import Verdict
from torchprof_hooks.profiles.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class Counts:
    """What the file of a rank says of its loop, as far as ranks are compared by that.

    steps: the steps of the loop.
    all_steps: these, and those of the start-up.
    own_ns: own times by chain of calls and phase.
    infos: descriptions of the names in the chains.
    """

    provenance: Provenance
    steps: int
    all_steps: int
    wall_ns: int
    step_times: StepTimes
    own_ns: Mapping[CellKey, int]
    infos: Infos

    def since(self, earlier: Counts | None) -> Counts:
        """What was counted since an earlier file; all, if that is of another process,
        or was written before the first step had ended, which is no part of the loop."""
        if earlier is None or not earlier.steps or not self._is_process_of(earlier):
            return self
        before = earlier.own_ns
        return replace(
            self,
            steps=self.steps - earlier.steps,
            wall_ns=self.wall_ns - earlier.wall_ns,
            step_times=self.step_times.without(earlier.step_times),
            own_ns={key: ns - before.get(key, 0) for key, ns in self.own_ns.items()},
        )

    def as_rank(self) -> Rank:
        """The same per step, to be compared with other ranks. There must be steps."""
        cells = {key: ns / self.steps for key, ns in self.own_ns.items() if ns}
        step_ns = self.wall_ns / self.steps
        return Rank(
            f"rank {self.provenance.rank}",
            self.provenance,
            self.steps,
            step_ns,
            cells,
            self.infos,
            own_time_in(self.step_times, step_ns, cells),
        )

    def _is_process_of(self, earlier: Counts) -> bool:
        own, other = self.provenance, earlier.provenance
        return own.is_process_of(other) and own.started_ns == other.started_ns


def counts_of(
    profile: ProfileData, keys: dict[CellKey, CellKey], infos: Infos
) -> Counts:
    """The counts of the profile of one rank.

    keys, infos: those of other ranks. What is the same is shared, to save memory.
    """
    loop = profile.loop
    return Counts(
        profile.provenance[0],
        loop.steps,
        profile.steps,
        loop.wall_ns,
        loop.step_times,
        {keys.setdefault(key, key): t.self_ns for key, t in loop.cells.items()},
        infos if infos == loop.modules else dict(loop.modules),
    )


#: How many verdicts in a row have to agree, for the first line.
_IN_A_ROW: Final = 2


class News(NamedTuple):
    """A change of the reported slow rank: the current one and the one before; None: no
    rank is slow."""

    now: int | None
    before: int | None


class SlowRank:
    """Follows the verdicts on what ranks did lately, and notices a change: once two
    verdicts in a row agree. So what a busy machine does for a while is no news, nor
    is a change that comes with the files of some ranks earlier than with others.

    Each line asks for one more verdict in a row than the one before it, so that a run
    in which ranks are slow in turns becomes quiet by itself.
    """

    def __init__(self) -> None:
        self._reported: int | None = None  # the rank that was reported as slow
        self._named = frozenset[int | None]()  # by all of the last verdicts
        self._in_a_row = 0
        self._wanted = _IN_A_ROW

    def news(self, verdict: Verdict) -> News | None:
        """What this verdict adds to those before it; None if nothing."""
        if verdict.rank is None and verdict.lost_ns > verdict.noise_ns / 2:
            return None  # else a rank near the limit would be reported again and again
        slow = frozenset([verdict.rank, *verdict.also])  # of None, if all are even
        both = slow & self._named
        self._in_a_row = self._in_a_row + 1 if both else 1
        self._named = both or slow
        reported, rank = self._reported, verdict.rank
        if self._in_a_row < self._wanted or reported in slow or rank not in self._named:
            return None
        self._reported = rank
        self._wanted += 1
        return News(rank, reported)
