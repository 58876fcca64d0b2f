"""Which files of a folder are the ranks of one run, which are left out, and which ranks
are missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.ranks.provenance import Provenance
from torchprof_hooks.profiles.ranks.rank import Rank
from torchprof_hooks.profiles.ranks.reading import read_all

#: How often files are written that do not say it.
_USUAL_FLUSH_NS = 60_000_000_000


class StaleRank(NamedTuple):
    """A rank that was left behind.

    age_ns: by how much its file is older than the newest one.
    steps: how many it has ended.
    has_ended: whether the process wrote it at its end.
    """

    rank: int
    age_ns: int
    steps: int
    has_ended: bool


class Run(NamedTuple):
    """The ranks of a run, in their order, and what is wrong with their files.

    missing: ranks of which there is nothing.
    stale: ranks that are behind the others.
    notes: what was left out, and why, and in what else ranks differ.
    """

    ranks: tuple[Rank, ...]
    world_size: int
    missing: tuple[int, ...] = ()
    stale: tuple[StaleRank, ...] = ()
    notes: tuple[str, ...] = ()


def read_run(folder: Path, processes: int = 1) -> Run:
    """The newest run that has files in a folder: those named ``*.json``; if there are
    none, all.

    processes: how many read at once (see `read_all`).

    Raises:
        ProfileFileError: it has no file of any rank.
        OSError: it is no folder, or cannot be read.
    """
    files = [path for path in sorted(folder.iterdir()) if path.name[0] != "."]
    paths = [path for path in files if path.suffix == ".json"] or files
    found: list[Rank] = []
    notes: list[str] = []
    for each in read_all(paths, processes):
        if isinstance(each, str):
            notes.append(f"left out: {each}")
        else:
            found.append(each)
    if not found:
        reasons = "".join(f"; {note}" for note in notes[:1])
        raise ProfileFileError(f"{folder} has no profiles of ranks{reasons}")
    return run_of(found, notes)


def run_of(found: Iterable[Rank], notes: Iterable[str] = ()) -> Run:
    """The newest run among ranks that were found."""
    by_age = sorted(found, key=lambda rank: -rank.provenance.written_ns)
    newest = by_age[0].provenance
    said = list(notes)
    kept: dict[int, Rank] = {}
    for rank in by_age:
        if not _is_same_run(rank.provenance, newest):
            said.append(f"left out: {rank.name} is of another run")
        elif rank.number not in kept:
            kept[rank.number] = rank
        else:
            one, other = sorted((kept[rank.number], rank), key=lambda r: -r.steps)
            kept[rank.number] = one
            said.append(f"left out: {other.name}: {one.name} is of rank {rank.number}")
    ranks = tuple(kept[number] for number in sorted(kept))
    size = newest.world_size
    missing = tuple(number for number in range(size) if number not in kept)
    stale = tuple(_stale(ranks))
    return Run(ranks, size, missing, stale, (*said, *_differences(ranks)))


def _is_same_run(one: Provenance, newest: Provenance) -> bool:
    """Some launchers give each rank other arguments, but none another script."""
    if _job(one) != _job(newest):
        return False
    return bool(one.run) or one.written_ns >= newest.started_ns


def _job(one: Provenance) -> tuple[int, str, str]:
    return one.world_size, one.run, one.command.partition(" ")[0]


def _stale(ranks: tuple[Rank, ...]) -> Iterator[StaleRank]:
    """Those whose files are older than the newest by more than two flushes. A rank that
    has ended is none of them if no other has made more steps."""
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
    """In what ranks differ that should be the same, or makes rows hard to compare."""
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
