"""Bounds the memory for many short-lived threads, such as those of a server that starts
one for each request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData

Measuring = TypeVar("Measuring")

#: For this many ended threads, the objects that measured them are kept: to make a
#: profile of one takes milliseconds, and most programs have few threads.
ENDED_KEPT: Final = 128


class EndedThreads(Generic[Measuring]):
    """Merges the profiles of ended threads into one, so that memory is bounded.

    threads: the objects that measure threads, also running ones. Objects whose profile
        was merged are removed from the list.
    has_ended: whether the thread of an object has ended, and is measured no more.
    profile_of: the profile of what an object has measured.
    """

    def __init__(
        self,
        threads: list[Measuring],
        has_ended: Callable[[Measuring], bool],
        profile_of: Callable[[Measuring], ProfileData],
    ) -> None:
        self._threads = threads
        self._has_ended = has_ended
        self._profile_of = profile_of
        self._together: list[ProfileData] = []  # the merged profile, if any
        self._folding = threading.RLock()

    @property
    def profile(self) -> ProfileData:
        """Everything measured so far, in all threads."""
        from torchprof_hooks.capture.snapshot import merge_snapshots

        with self._folding:
            found = [self._profile_of(each) for each in list(self._threads)]
            return merge_snapshots([*self._together, *found])

    def forget_all(self) -> None:
        """Forget everything measured so far."""
        with self._folding:
            self._threads.clear()
            self._together.clear()

    def add(self, measuring: Measuring) -> None:
        """Add the object that measures a new thread."""
        self.make_room()
        self._threads.append(measuring)

    def make_room(self) -> None:
        """If many threads have ended, merge the oldest of them into the profile. To be
        called for each new thread."""
        if len(self._threads) < ENDED_KEPT or not self._folding.acquire(blocking=False):
            return
        try:
            ended = [each for each in list(self._threads) if self._has_ended(each)]
            if len(ended) >= ENDED_KEPT:
                self._fold(ended[0])
        finally:
            self._folding.release()

    def _fold(self, ended: Measuring) -> None:
        from torchprof_hooks.capture.snapshot import merge_snapshots

        found = merge_snapshots([*self._together, self._profile_of(ended)])
        self._together = [found]
        self._threads.remove(ended)
