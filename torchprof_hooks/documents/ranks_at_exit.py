"""The report of ranks that rank 0 prints when all have ended."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from torchprof_hooks.documents.build.ranks import ranks_document
from torchprof_hooks.documents.render.text import text_of
from torchprof_hooks.files.own_file import rank_path
from torchprof_hooks.files.profile_file import provenance_of
from torchprof_hooks.files.ranks import read_run
from torchprof_hooks.profiles.provenance import Provenance

#: How long rank 0 waits for the files of the others.
PATIENCE_S: Final = 5.0
_PAUSE_S: Final = 0.05


def final_report(
    path: Path,
    provenance: Provenance,
    patience_s: float = PATIENCE_S,
    is_hurried: Callable[[], bool] = lambda: False,
) -> str:
    """The report of ranks, for rank 0 to print at its end, with the command that shows
    the report of a single rank; "" for other ranks, and if there is only one process.
    It waits for the last files of the others.

    If no other rank writes a file, they may be on machines with folders of their own:
    then the text names the command that makes the report when all files are together.

    path: the path of the profiles, without ranks.
    provenance: that of this process.
    patience_s: how long to wait, in seconds.
    is_hurried: whether to stop waiting now.
    """
    if provenance.rank or provenance.world_size == 1:
        return ""
    others = range(1, provenance.world_size)
    files = [rank_path(path, provenance._replace(rank=number)) for number in others]
    until_s = time.monotonic() + patience_s
    _wait(files, provenance, lambda: time.monotonic() >= until_s or is_hurried())
    if any(_is_there(file, provenance) for file in files):
        ranks = read_run(path.parent)
        slow, own = ranks.verdict.rank, ranks.ranks[0].number
        number = own if slow is None else slow
        return (
            f"{text_of(ranks_document(ranks))}\n"
            f"The report of rank {number}: "
            f"python -m torchprof_hooks show {shlex.quote(ranks.path_of(number))}"
        )
    return (
        f"torchprof_hooks: no files of other ranks in {path.parent}. When they are "
        f"together in a folder: python -m torchprof_hooks ranks FOLDER"
    )


def _wait(
    files: Iterable[Path], own: Provenance, is_too_late: Callable[[], bool]
) -> None:
    """Wait until all processes have written their last files, or it is too late. There
    may be a thousand files, so each is read only when it has changed."""
    waiting = dict.fromkeys(files, 0)
    while waiting and not is_too_late():
        for file, known_ns in list(waiting.items()):
            written_ns = _written_ns(file)
            if written_ns == known_ns or is_too_late():
                continue
            waiting[file] = written_ns
            if _is_there(file, own, at_end=True):
                del waiting[file]
        if waiting:
            time.sleep(_PAUSE_S)


def _written_ns(file: Path) -> int:
    """When the file was written; 0 if there is none."""
    with suppress(OSError):
        return file.stat().st_mtime_ns
    return 0


def _is_there(file: Path, own: Provenance, *, at_end: bool = False) -> bool:
    """Whether a file was written in this run; with `at_end`, at its process's end."""
    try:
        found = provenance_of(file)
    except (OSError, ValueError):
        return False
    return any(
        each.written_ns >= own.started_ns and (each.has_ended or not at_end)
        for each in found
    )
