"""Threads that end while others come, as those of a server do that has one for each
request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from torchprof_hooks.profiles.profile import Profile

Measuring = TypeVar("Measuring")

#: So many of what measured threads that have ended are kept as they are: making a
#: profile of one takes milliseconds, and most programs have few threads.
ENDED_KEPT: Final = 128


class EndedThreads(Generic[Measuring]):
    """Sees to it that what measures threads does not become ever more: of many that
    have ended, it keeps only the profile that they have together.

    threads: what measures each thread, also one that runs. Others add to it; what is
        kept as a profile alone is taken out of it.
    has_ended: whether the thread has, and is measured no more.
    profile_of: what was measured in it.
    """

    def __init__(
        self,
        threads: list[Measuring],
        has_ended: Callable[[Measuring], bool],
        profile_of: Callable[[Measuring], Profile],
    ) -> None:
        self._threads = threads
        self._has_ended = has_ended
        self._profile_of = profile_of
        self._together: list[Profile] = []  # one at most
        self._folding = threading.RLock()

    @property
    def profile(self) -> Profile:
        """Everything measured so far, in all threads."""
        from torchprof_hooks.capture.snapshot import merge_snapshots

        with self._folding:
            found = [self._profile_of(each) for each in list(self._threads)]
            return merge_snapshots([*self._together, *found])

    def forget_all(self) -> None:
        """From now on, nothing has been measured."""
        with self._folding:
            self._threads.clear()
            self._together.clear()

    def add(self, measuring: Measuring) -> None:
        """There is one thread more."""
        self.make_room()
        self._threads.append(measuring)

    def make_room(self) -> None:
        """For a thread that is new: where many have ended, each that comes has one of
        them kept as a profile alone."""
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
