"""The line about ranks that is printed while a program runs, from their files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from torchprof_hooks.documents.build.slow_rank import news_line
from torchprof_hooks.files.profile_file import load
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.provenance import Processes, Provenance
from torchprof_hooks.profiles.ranks.ranks import run_of
from torchprof_hooks.profiles.ranks.recent import Counts, SlowRank, counts_of

#: With fewer steps than this since the last comparison, wait for more.
_FEWEST_STEPS: Final = 8


class RanksLately:
    """Compares what ranks did since they were compared last."""

    def __init__(self) -> None:
        self._known: list[Counts | None] = []  # as they were compared last
        self._slow = SlowRank()

    def news(self, paths: list[Path], own: Provenance) -> str:
        """The line to print, "" if there is no news. A rank whose file is old, of
        another run, or damaged is waited for.

        paths: the files of all ranks, in their order.
        own: the provenance of this process.
        """
        found = _read(paths, own)
        known = self._known or [None] * own.world_size
        recent = [now.since(before) for now, before in zip(found, known, strict=False)]
        if min((each.steps for each in recent), default=0) < _FEWEST_STEPS:
            return ""
        self._known = [*found]
        verdict = run_of(each.as_rank() for each in recent).verdict
        news = self._slow.news(verdict)
        return news_line(news, verdict, found[0].all_steps) if news else ""


def _read(paths: Iterable[Path], own: Provenance) -> list[Counts]:
    """What the files of all ranks say; [] if one is damaged, or not of this run."""
    found: list[Counts] = []
    keys: dict[CellKey, CellKey] = {}
    for number, path in enumerate(paths):
        try:
            profile = load(path)
        except (OSError, ValueError):
            return []
        if not _is_of_rank(number, profile.provenance, own):
            return []
        infos = found[-1].infos if found else {}
        found.append(counts_of(profile, keys, infos))
    return found


def _is_of_rank(number: int, processes: Processes, own: Provenance) -> bool:
    """Whether a file is of this rank alone, and of the run that `own` is of."""
    return len(processes) == 1 and all(
        (each.rank, each.world_size, each.run) == (number, own.world_size, own.run)
        and each.written_ns >= own.started_ns
        for each in processes
    )
