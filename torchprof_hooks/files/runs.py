"""Reads the runs of one side of a comparison."""

from __future__ import annotations

from pathlib import Path

from torchprof_hooks.files.profile_file import load
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.errors import ProfileFileError


def read_runs(path: Path) -> list[ProfileData]:
    """The profile in a file; or those in a folder, one of each run, by their names.

    Raises:
        ProfileFileError: a file is no profile, or the folder has no ``*.json``.
        OSError: it cannot be read.
    """
    if not path.is_dir():
        return [load(path)]
    paths = sorted(path.glob("*.json"))
    if not paths:
        raise ProfileFileError(
            f"{path} has no profiles: it needs a file *.json for each run"
        )
    return [load(each) for each in paths]
