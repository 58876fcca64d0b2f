"""What the trackers of one measuring hook have recorded, in all its threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np

from torchprof_hooks.capture.core.span_log import Int64s
from torchprof_hooks.capture.record.call_history import CallHistory
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.tracker import Tracker


class Log(Protocol):
    """A `SpanLog` or a `MemoryLog`."""

    on_fold: Callable[[Int64s], None] | None

    def fold(self) -> None: ...


class Place(NamedTuple):
    """A site of one of the trackers."""

    tracker: Tracker
    site: Site


class CallRecords:
    """The trackers of a hook, and the newest calls that they recorded.

    history_size: how many calls are kept one by one.
    is_kept: whether calls at a site are.
    """

    def __init__(self, history_size: int, is_kept: Callable[[Site], bool]) -> None:
        self._is_kept = is_kept
        self._history: CallHistory[Place] = CallHistory(history_size)
        self._followed: list[tuple[Tracker, Log]] = []

    def follow(self, tracker: Tracker, log: Log) -> None:
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
