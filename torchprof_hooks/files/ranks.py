"""Reads the profiles of all ranks of a run from a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torchprof_hooks.files.collector import without_collections
from torchprof_hooks.files.profile_file import load
from torchprof_hooks.profiles.cells import CellKey, Infos
from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.ranks.rank import Rank, rank_of
from torchprof_hooks.profiles.ranks.ranks import RanksData, run_of


def read_run(folder: Path) -> RanksData:
    """The newest run that has files in a folder. Only files ``*.json`` are read; if
    there are none, all files.

    Raises:
        ProfileFileError: it has no file of any rank.
        OSError: it is no folder, or cannot be read.
    """
    files = [path for path in sorted(folder.iterdir()) if path.name[0] != "."]
    paths = [path for path in files if path.suffix == ".json"] or files
    found: list[Rank] = []
    notes: list[str] = []
    for each in read_all(paths):
        if isinstance(each, str):
            notes.append(f"left out: {each}")
        else:
            found.append(each)
    if not found:
        reasons = "".join(f"; {note}" for note in notes[:1])
        raise ProfileFileError(f"{folder} has no profiles of ranks{reasons}")
    return run_of(found, notes, str(folder))


def read_all(paths: Sequence[Path]) -> list[Rank | str]:
    """For each file, its rank, or the reason why it has none."""
    with without_collections():
        return list(_sharing(map(_read, paths)))


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


def _read(path: Path) -> Rank | str:
    if path.exists() and not path.is_file():  # reading a pipe could wait forever
        return f"{path.name} is no file"
    try:
        return rank_of(path.name, load(path))
    except (OSError, ProfileFileError) as error:
        return str(error).replace(f"{path.parent}/", "")
