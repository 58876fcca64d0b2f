"""The profile file of this process, written while the program runs, and at its end.

The code that reads and writes files is imported when the first file is written.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torchprof_hooks.profiles.provenance import Provenance

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData

#: The shortest time between writes, so that writing is not all that happens.
_LEAST_SECS: Final = 0.01


class _Writing:
    """Tells a writing thread when to write, and when to end.

    secs: time between two writes; None: it writes only when `is_due` is set.
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
        self,
        path: Path,
        sign: Callable[[bool], Provenance],
        flush_secs: float,
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
        """The path of the file; before the first write, the path that it most likely
        gets."""
        return self._own or rank_path(self._path, self._sign(False))

    def keep_writing(
        self, make: Callable[[], ProfileData | None], *, at_once: bool = False
    ) -> None:
        """From now on, write what `make` returns, in another thread, until `finish` is
        called, or `make` returns None. A later call replaces `make`.

        Where no thread can be started (a program that is ending gets none), only
        `finish` writes.

        at_once: write now. A thread that this call starts writes again only at the next
            such call.
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
                    return  # `finish` writes the last profile
                with suppress(Exception):  # if it lasts, `finish` raises it
                    made = self._make()
                    if made is None:
                        return
                    self._write(made, has_ended=False)
                    del made  # so that waiting keeps no profile alive

    def _write(self, profile: ProfileData, *, has_ended: bool) -> None:
        from torchprof_hooks.files.profile_file import save

        provenance = self._sign(has_ended)
        signed = replace(profile, provenance=(provenance,))
        if self._own is not None:
            save(signed, self._own)
            return
        own = _free_path(self._path, provenance)
        save(signed, own)
        self._own = own

    def _renew_in_fork(self) -> None:
        """Start afresh in a fork: it has no writing thread, and needs another file."""
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
    with suppress(OSError, ValueError):  # a file that is no profile may be replaced
        others = provenance_of(path) if path.is_file() else ()
    is_taken = any(
        not other.is_process_of(provenance)
        and other.written_ns >= provenance.started_ns
        for other in others
    )
    return _with(path, f"-pid{provenance.pid}" * is_taken)


def _with(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.stem}{suffix}{path.suffix}")
