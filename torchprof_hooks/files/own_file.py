"""The file of the running process, which is written while it runs, and at its end.

The code that reads and writes files is imported when the first file is written.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torchprof_hooks.profiles.provenance import Provenance

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData

#: The shortest time between writes: if it were shorter, nothing else would be done.
_LEAST_SECS: Final = 0.01
#: How long to wait for another process that looks at the folder.
_PATIENCE_S: Final = 1.0


class _Writing:
    """What a thread that writes has to know: when to write, and when it is over.

    secs: time between two writes; None: only when it is told to.
    """

    def __init__(self, secs: float | None) -> None:
        self.secs = secs
        self.is_due = threading.Event()
        self.is_over = False


class OwnFile:
    """Writes the profile of this process to a file of its own: ``profile-rank1.json``
    for rank 1; ``profile-pid4711.json`` where another process has written the first one
    since this one began.

    path: the path without the rank.
    sign: makes the `Provenance` of a profile, given whether it is the last one.
    flush_secs: time between two writes while the program runs; a thread writes.
    """

    def __init__(
        self, path: Path, sign: Callable[[bool], Provenance], flush_secs: float
    ) -> None:
        self._path = path
        self._sign = sign
        self._secs = min(max(flush_secs, _LEAST_SECS), threading.TIMEOUT_MAX)
        self._make: Callable[[], ProfileData | None]
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._own: Path | None = None  # known once the file has been written
        self._lock = threading.Lock()
        self._writing: _Writing | None = None

    @property
    def path(self) -> Path:
        """Where the file is, or will most likely be."""
        return self._own or rank_path(self._path, self._sign(False))

    def keep_writing(
        self, make: Callable[[], ProfileData | None], *, at_once: bool = False
    ) -> None:
        """From now on, write what `make` returns, from another thread, until `finish`,
        or until that is None. May be called again, with something newer.

        Where no thread can be started (a program that is ending gets none), only
        `finish` writes.

        at_once: write now, and not again before the next call.
        """
        self._renew_in_fork()
        self._make = make
        if self._writing is None:
            self._writing = self._begin_writing(None if at_once else self._secs)
        if at_once and self._writing is not None:
            self._writing.is_due.set()

    def _begin_writing(self, secs: float | None) -> _Writing | None:
        writing, name = _Writing(secs), "torchprof_hooks writer"
        thread = threading.Thread(None, self._write_on, name, (writing,), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return None
        return writing

    def finish(self, profile: ProfileData) -> None:
        """Write `profile`, and nothing after it until `keep_writing` is called again.

        Raises:
            OSError: the file cannot be written.
        """
        self._renew_in_fork()
        if self._writing is not None:
            self._writing.is_over = True
            self._writing.is_due.set()
            self._writing = None
        with self._lock:
            self._write(profile, has_ended=True)

    def _write_on(self, writing: _Writing) -> None:
        while True:
            writing.is_due.wait(writing.secs)
            writing.is_due.clear()
            with self._lock:
                if writing.is_over:
                    return  # the last one is there
                with suppress(Exception):  # the last write raises, in `finish`
                    made = self._make()
                    if made is None:
                        return
                    self._write(made, has_ended=False)
                    del made  # nobody is to be kept alive while this waits

    def _write(self, profile: ProfileData, *, has_ended: bool) -> None:
        from torchprof_hooks.files.profile_file import save

        provenance = self._sign(has_ended)
        signed = replace(profile, provenance=(provenance,))
        if self._own is not None:
            save(signed, self._own)
            return
        with _alone_in(self._path.parent):
            own = _free_path(self._path, provenance)
            save(signed, own)
        self._own = own

    def _renew_in_fork(self) -> None:
        """A fork has no thread that writes, and needs a file of its own."""
        if os.getpid() != self._pid:
            self._begin()


def rank_path(path: Path, provenance: Provenance) -> Path:
    """The path for a rank: ``profile-rank1.json``. Without ranks, the same path."""
    return _with(path, f"-rank{provenance.rank}" * (provenance.world_size > 1))


def _free_path(path: Path, provenance: Provenance) -> Path:
    """A path that no other process has written to since this one began."""
    from torchprof_hooks.files.profile_file import provenance_of

    path = rank_path(path, provenance)
    others: tuple[Provenance, ...] = ()
    with suppress(OSError, ValueError):  # whatever is there is no profile
        others = provenance_of(path) if path.is_file() else ()
    is_taken = any(
        not other.is_process_of(provenance)
        and other.written_ns >= provenance.started_ns
        for other in others
    )
    return _with(path, f"-pid{provenance.pid}" * is_taken)


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.stem}{suffix}{path.suffix}")


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder, so that only one process at a time looks for a free name in it.
    Where there are no locks, or one is held for too long, the block runs all the same.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)
