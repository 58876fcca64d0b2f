"""Writes files completely, or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

#: Paths of files that are open already, which may be regular ones. Not all of
#: ``/dev/``: ``/dev/shm`` has files like any other folder.
_OPEN_FILES: Final = ("/dev/fd/", "/dev/std", "/proc/")


@contextmanager
def replaced_file(path: str | Path) -> Iterator[TextIO]:
    """A text file in UTF-8 to write to, which gets its name at the end of the block. A
    file of this name is replaced only when all of the new one is written, and stays if
    that fails.

    The new file takes over the mode of the old one; if there was none, it has what the
    umask leaves. Of a link, the file that it points to is replaced. Devices and pipes
    are written to.

    Raises:
        OSError: the file cannot be written, or the old one must not be.
    """
    there = _status(path)
    if _is_written_through(path, there):
        with _opened(path, os.O_APPEND) as file:
            yield file
        return
    if there is not None and stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    target = Path(os.path.realpath(path))
    if there is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    import secrets  # not at the top: it imports much, which would delay programs

    # Not the old name with a suffix, which could be longer than names may be.
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        file = _opened(temporary, os.O_CREAT | os.O_EXCL)
    except OSError as error:  # of the folder, not of a name that nobody knows
        raise OSError(error.errno, error.strerror, str(target.parent)) from None
    try:
        with file:
            if there is not None:
                _take_over(file.fileno(), there)
            yield file
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _opened(path: str | Path, flags: int) -> TextIO:
    """Open a text file. What UTF-8 cannot encode becomes an escape: names of files and
    classes can have such characters."""
    descriptor = os.open(path, os.O_WRONLY | flags, 0o666)
    return open(descriptor, "w", encoding="utf-8", errors="backslashreplace")


def _status(path: str | Path) -> os.stat_result | None:
    """The status of the file that a path leads to, None if there is none yet."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _is_written_through(path: str | Path, there: os.stat_result | None) -> bool:
    """Whether the path leads to a device, pipe or open file, which cannot be
    replaced."""
    if there is None or stat.S_ISDIR(there.st_mode):
        return False
    is_open_file = os.path.abspath(path).startswith(_OPEN_FILES)
    return is_open_file or not stat.S_ISREG(there.st_mode)


def _take_over(descriptor: int, there: os.stat_result) -> None:
    """Give a new file the mode and, as far as that is allowed, the owner and group of
    the one that was there; not on Windows, which has neither."""
    if not (hasattr(os, "fchown") and hasattr(os, "fchmod")):
        return
    own = os.fstat(descriptor)
    if (own.st_uid, own.st_gid) != (there.st_uid, there.st_gid):
        with suppress(OSError):
            os.fchown(descriptor, there.st_uid, there.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(there.st_mode))


def write_text(text: str, path: str | Path) -> None:
    """Write a text to a file completely, or not at all (see `replaced_file`).

    Raises:
        OSError: it cannot be written.
    """
    with replaced_file(path) as file:
        file.write(text)
