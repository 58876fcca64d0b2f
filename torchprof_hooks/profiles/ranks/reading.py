"""Reading the files of many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.files.collector import without_collections
from torchprof_hooks.profiles.ranks.rank import Rank, read_rank

#: Fewer files are read sooner here than other processes start.
_MANY: Final = 64
#: Files that a process reads at a time. What they have in common is sent once.
_PART: Final = 32


def read_all(paths: Sequence[Path], processes: int) -> list[Rank | str]:
    """For each file its rank, or why it has none.

    processes: how many read at once, if there are many files. They are forked: give
        more than 1 only in a program with one thread. Where forking is not possible,
        this process reads.
    """
    found = None
    if processes > 1 and len(paths) >= _MANY:
        found = _read_in_forks(paths, processes)
    if found is not None:
        return found
    with without_collections():
        return list(map(_read, paths))


def _read_in_forks(paths: Sequence[Path], processes: int) -> list[Rank | str] | None:
    """What `read_all` returns, read by forks; None if these are impossible, or die."""
    # Not at the top: rank 0 reads while its interpreter ends, when this import fails.
    from concurrent.futures import process
    from multiprocessing import get_context

    try:
        with process.ProcessPoolExecutor(processes, get_context("fork")) as pool:
            return list(pool.map(_read, paths, chunksize=_PART))
    except (ImportError, NotImplementedError, OSError, process.BrokenProcessPool):
        return None


def _read(path: Path) -> Rank | str:
    if path.exists() and not path.is_file():  # nobody may ever write to a pipe
        return f"{path.name} is no file"
    try:
        return read_rank(path)
    except (OSError, ProfileFileError) as error:
        return str(error).replace(f"{path.parent}/", "")
