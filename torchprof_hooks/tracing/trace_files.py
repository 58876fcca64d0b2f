"""Files that appear complete or not at all, and never replace another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

#: Added to the name of a file that is being written.
PARTIAL: Final = ".partial"


class NewFile(NamedTuple):
    """A file that is being written, and the path that it will have."""

    path: Path
    file: BinaryIO


@contextmanager
def new_file(directory: Path, name: str, suffix: str) -> Iterator[NewFile]:
    """A file to write to, renamed when the block is left: to `name` with `suffix`, or
    to "<name>-2", "<name>-3" and so on if there is such a file already. Directories
    that are missing are made.

    Raises:
        OSError: the file cannot be written. Then nothing of it is left.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path, partial, file = _reserve(directory, name, suffix)
    try:
        with file:
            yield NewFile(path, file)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _reserve(directory: Path, name: str, suffix: str) -> tuple[Path, Path, BinaryIO]:
    # Only the writer that made the partial file may use its name. Other writers, also
    # in other processes, find that file, or the one that it was renamed to.
    for number in count(1):
        path = directory / (f"{name}-{number}{suffix}" if number > 1 else name + suffix)
        partial = path.with_name(path.name + PARTIAL)
        if path.exists():
            continue
        try:
            file = partial.open("xb")
        except FileExistsError:
            continue
        if not path.exists():
            return path, partial, file
        file.close()
        partial.unlink()
    raise AssertionError("there is always another number")
