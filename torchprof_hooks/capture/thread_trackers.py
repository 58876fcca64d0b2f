"""Trackers for whichever threads turn up."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from torchprof_hooks.capture.backward_entry import backward_entry
from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.torch_names.autograd import (
    current_graph_task,
)
from torchprof_hooks.capture.tracker import Tracker


class ThreadTrackers:
    """A tracker for each thread that needs one, made when it is first asked for.

    While it has users, its trackers see backward passes.

    keeps_ended: whether `trackers` has those of threads that have ended.
    """

    def __init__(
        self, make_tracker: Callable[[], Tracker], keeps_ended: bool = False
    ) -> None:
        self._make_tracker = make_tracker
        self.keeps_ended = keeps_ended
        self._local = threading.local()
        self._users = 0
        self.trackers: list[Tracker] = []

    def here(self) -> Tracker:
        """The tracker that the running thread works for: its own, or in a backward
        thread of the engine, that of the thread which started the pass."""
        if current_graph_task() != -1:
            for known in self.trackers:
                if known.works_here():
                    return known
        tracker: Tracker | None = getattr(self._local, "tracker", None)
        if tracker is None:
            tracker = self._local.tracker = self._make_tracker()
            self._local.lifetime = _Lifetime(tracker, self)
            self.trackers.append(tracker)
            if isinstance(tracker, BackwardTracker):
                backward_entry.add(tracker)
        return tracker

    def acquire(self) -> None:
        """Count one user more."""
        self._users += 1
        if self._users == 1:
            for tracker in self._owners():
                backward_entry.add(tracker)

    def release(self) -> None:
        """Count one user less."""
        self._users -= 1
        if not self._users:
            for tracker in self._owners():
                backward_entry.remove(tracker)

    def acquire_for(self, owner: object) -> Callable[[], object]:
        """Count one user more, until what this returns is called or `owner` dies."""
        self.acquire()
        release = weakref.finalize(owner, _release, weakref.ref(self))
        release.atexit = False
        return release

    def _owners(self) -> list[BackwardTracker]:
        return [t for t in self.trackers if isinstance(t, BackwardTracker)]


def _release(threads: weakref.ref[ThreadTrackers]) -> None:
    living = threads()
    if living is not None:
        living.release()


class _Lifetime:
    """Dies with a thread, whose number is then given to other threads."""

    def __init__(self, tracker: Tracker, threads: ThreadTrackers) -> None:
        self._tracker = tracker
        self._threads = weakref.ref(threads)

    def __del__(self) -> None:
        self._tracker.retire()
        threads = self._threads()
        if threads is not None and not threads.keeps_ended:
            threads.trackers = [t for t in threads.trackers if t is not self._tracker]
        if isinstance(self._tracker, BackwardTracker):
            backward_entry.remove(self._tracker)
