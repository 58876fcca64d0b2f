"""Bounds the memory for many short-lived threads, such as those of a server that starts
one for each request."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from torchprof_hooks.hooks.measuring import ThreadRounds

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData

#: For this many ended threads, the objects that measured them are kept: to make a
#: profile of one takes milliseconds, and most programs have few threads.
ENDED_KEPT: Final = 128


class EndedThreads:
    """Merges the profiles of ended threads into one, so that memory is bounded.

    threads: what measures threads, also running ones; those whose profiles were merged
        are removed from the list.
    """

    def __init__(self, threads: list[ThreadRounds]) -> None:
        self._threads = threads
        self._together: list[ProfileData] = []  # the merged profile, if any
        self._folding = threading.RLock()

    @property
    def profile(self) -> ProfileData:
        """Everything measured so far, in all threads."""
        from torchprof_hooks.capture.snapshot import merge_snapshots

        with self._folding:
            found = [each.snapshot() for each in list(self._threads)]
            return merge_snapshots([*self._together, *found])

    def forget_all(self) -> None:
        """Forget everything measured so far."""
        with self._folding:
            self._threads.clear()
            self._together.clear()

    def add(self, measuring: ThreadRounds) -> None:
        """Add what measures a new thread. If many threads have ended, merge the oldest
        of them into the profile."""
        self._threads.append(measuring)
        if len(self._threads) < ENDED_KEPT or not self._folding.acquire(blocking=False):
            return
        try:
            ended = [each for each in list(self._threads) if each.have_ended()]
            if len(ended) >= ENDED_KEPT:
                self._fold(ended[0])
        finally:
            self._folding.release()

    def _fold(self, ended: ThreadRounds) -> None:
        from torchprof_hooks.capture.snapshot import merge_snapshots

        found = merge_snapshots([*self._together, ended.snapshot()])
        self._together = [found]
        self._threads.remove(ended)
