"""What the trackers of one measuring hook have recorded, in all its threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from torchprof_hooks.capture.core.span_log import FlatLog, Int64s
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.options import check_whole

Where = TypeVar("Where")


class CallHistory(Generic[Where]):
    """Keeps the newest `size` calls from logs that were folded, as compact arrays.

    Calls come in batches, each with a function that turns the code of a call's site
    into where it was made; that is called only when somebody reads the history.

    Raises:
        TypeError: `size` is no whole number.
        ValueError: it is negative.
    """

    def __init__(self, size: int) -> None:
        self._size = check_whole("history_size", size, least=0)
        self._batches: deque[tuple[Callable[[int], Where], Int64s]] = deque()
        self._kept = 0
        self._lock = Lock()  # threads of one hook have one history

    def add(self, place_of: Callable[[int], Where], calls: Int64s) -> None:
        """Append calls, one row (code of the site, numbers) each, and drop the oldest
        beyond `size`."""
        with self._lock:
            self._batches.append((place_of, calls))
            self._kept += len(calls)
            while self._kept > self._size:
                place_of, oldest = self._batches.popleft()
                surplus = min(self._kept - self._size, len(oldest))
                self._kept -= surplus
                if surplus < len(oldest):
                    self._batches.appendleft((place_of, oldest[surplus:].copy()))

    def newest(self) -> Iterator[tuple[Where, list[int]]]:
        """(place, numbers) of the kept calls, oldest first."""
        for place_of, calls in self._batches:
            for code, *numbers in calls.tolist():
                yield place_of(code), numbers


class Place(NamedTuple):
    """A site of one of the trackers."""

    tracker: Tracker
    site: Site


class CallRecords:
    """The trackers of a hook, and the newest calls that they recorded.

    history_size: how many calls are kept one by one.
    is_kept: says whether calls at a site are kept.
    """

    def __init__(self, history_size: int, is_kept: Callable[[Site], bool]) -> None:
        self._is_kept = is_kept
        self._history: CallHistory[Place] = CallHistory(history_size)
        self._followed: list[tuple[Tracker, FlatLog]] = []

    def follow(self, tracker: Tracker, log: FlatLog) -> None:
        """Add a tracker; its calls go into the history as they are folded into `log`,
        which is the tracker's own or one of its meters'."""
        log.on_fold = lambda calls: self._keep(tracker, calls)
        self._followed.append((tracker, log))

    def newest(self) -> Iterator[tuple[Place, list[int]]]:
        """Place and numbers (as in the log) of the newest calls, in the order in which
        they ended; those of different threads in batches."""
        self._fold()
        return self._history.newest()

    def places(self) -> Iterator[Place]:
        """Where calls ended, in the order in which the first ones did."""
        self._fold()
        for tracker, _ in self._followed:
            for code in tracker.log.first_ended:
                yield Place(tracker, tracker.sites[code])

    def _keep(self, tracker: Tracker, calls: Int64s) -> None:
        kept = np.array([self._is_kept(site) for site in tracker.sites])
        self._history.add(
            lambda code: Place(tracker, tracker.sites[code]), calls[kept[calls[:, 0]]]
        )

    def _fold(self) -> None:
        for tracker, log in self._followed:
            tracker.log.fold()
            log.fold()
