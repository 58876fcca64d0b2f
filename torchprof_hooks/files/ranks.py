"""Reads the profiles of all ranks of a run from a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from torchprof_hooks.files.collector import without_collections
from torchprof_hooks.files.profile_file import load
from torchprof_hooks.profiles.cells import CellKey, Infos
from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.ranks.rank import Rank, rank_of
from torchprof_hooks.profiles.ranks.ranks import RanksData, run_of

#: With fewer files than this, starting other processes takes longer than reading here.
_MANY: Final = 64
#: Files that a process reads at a time. It sends what they have in common only once.
_PART: Final = 32


def read_run(folder: Path, processes: int = 1) -> RanksData:
    """The newest run that has files in a folder. Only files ``*.json`` are read; if
    there are none, all files.

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


def read_all(paths: Sequence[Path], processes: int) -> list[Rank | str]:
    """For each file, its rank, or the reason why it has none.

    processes: how many read at once, if there are many files. They are forks, so give
        more than 1 only in a program with one thread. Where forking is not possible,
        this process reads.
    """
    found = None
    if processes > 1 and len(paths) >= _MANY:
        found = _read_in_forks(paths, processes)
    with without_collections():
        return list(_sharing(map(_read, paths) if found is None else found))


def _sharing(found: Iterable[Rank | str]) -> Iterator[Rank | str]:
    """The same ranks, which share what is equal in them, to save memory: of a thousand
    ranks, most call the same modules in the same places."""
    keys: dict[CellKey, CellKey] = {}
    infos: Infos = {}
    for each in found:
        if isinstance(each, str):
            yield each
            continue
        cells = {keys.setdefault(key, key): ns for key, ns in each.cells.items()}
        infos = infos if each.infos == infos else each.infos
        yield replace(each, cells=cells, infos=infos)


def _read_in_forks(paths: Sequence[Path], processes: int) -> list[Rank | str] | None:
    """As `read_all`, in forks; None if forking is not possible, or a fork dies."""
    # Not at the top: rank 0 reads while its interpreter ends, when this import fails.
    from concurrent.futures import process
    from multiprocessing import get_context

    try:
        with process.ProcessPoolExecutor(processes, get_context("fork")) as pool:
            return list(pool.map(_read, paths, chunksize=_PART))
    except (ImportError, NotImplementedError, OSError, process.BrokenProcessPool):
        return None


def _read(path: Path) -> Rank | str:
    if path.exists() and not path.is_file():  # reading a pipe could wait forever
        return f"{path.name} is no file"
    try:
        return rank_of(path.name, load(path))
    except (OSError, ProfileFileError) as error:
        return str(error).replace(f"{path.parent}/", "")
