"""What the ready-made hooks that measure calls of modules have in common: what trackers
have recorded, in all threads of a hook."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property
from threading import Lock
from typing import NamedTuple

import numpy as np

from torchprof_hooks.kernel.reference.span_log import Int64s, SpanLog
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.link_hook import LinkHook
from torchprof_hooks.profiles.names import ModuleGrouping, check_grouping
from torchprof_hooks.profiles.options import check_whole


class TrackedSite(NamedTuple):
    """A site of one of the trackers."""

    tracker: Tracker
    site: Site


class CallRecords:
    """The trackers of a hook, and the newest calls that they recorded.

    history_size: how many of the newest calls are kept one by one, as compact arrays.
    is_kept: says whether calls at a site are kept.
    """

    def __init__(self, history_size: int, is_kept: Callable[[Site], bool]) -> None:
        self._is_kept = is_kept
        self._size = history_size
        # The newest calls: by tracker, one row (code of the site, numbers) each.
        self._batches: deque[tuple[Tracker, Int64s]] = deque()
        self._kept = 0
        self._lock = Lock()  # threads of one hook have one history
        self._followed: list[tuple[Tracker, SpanLog]] = []

    def follow(self, tracker: Tracker, log: SpanLog) -> None:
        """Add a tracker; its calls go into the history as they are folded into `log`,
        which is the tracker's own or one of its meters'."""
        log.on_fold = lambda calls: self._keep(tracker, calls)
        self._followed.append((tracker, log))

    def newest(self) -> Iterator[tuple[TrackedSite, list[int]]]:
        """Site and numbers (as in the log) of the newest calls, in the order in which
        they ended; those of different threads in batches."""
        self._fold()
        for tracker, calls in self._batches:
            for code, *numbers in calls.tolist():
                yield TrackedSite(tracker, tracker.sites[code]), numbers

    def places(self) -> Iterator[TrackedSite]:
        """Where calls ended, in the order in which the first ones did."""
        self._fold()
        for tracker, _ in self._followed:
            for code in tracker.log.first_ended:
                yield TrackedSite(tracker, tracker.sites[code])

    def _keep(self, tracker: Tracker, calls: Int64s) -> None:
        """Append calls, and drop the oldest of all beyond the size."""
        are_kept = np.array([self._is_kept(site) for site in tracker.sites])
        calls = calls[are_kept[calls[:, 0]]]
        with self._lock:
            self._batches.append((tracker, calls))
            self._kept += len(calls)
            while self._kept > self._size:
                tracker, oldest = self._batches.popleft()
                surplus = min(self._kept - self._size, len(oldest))
                self._kept -= surplus
                if surplus < len(oldest):
                    self._batches.appendleft((tracker, oldest[surplus:].copy()))

    def _fold(self) -> None:
        for tracker, log in self._followed:
            tracker.log.fold()
            log.fold()


class MeasuredCalls(LinkHook):
    """A hook that adds up numbers of calls.

    by: sums are by "class" or by qualified name ("module").
    history_size: how many calls `call_history` keeps.
    """

    _name_header = "LinkName"

    def __init__(self, by: ModuleGrouping, history_size: int) -> None:
        check_grouping(by)
        self.by = by
        self._history_size = check_whole("history_size", history_size, least=0)

    @cached_property
    def _records(self) -> CallRecords:
        return CallRecords(self._history_size, self._is_call)

    def _is_call(self, site: Site) -> bool:
        """Whether calls at `site` are counted."""
        raise NotImplementedError

    def _name(self, tracker: Tracker, site: Site) -> str:
        """The name of the row that calls at `site` belong to."""
        if self.by == "module":
            return site.name
        return tracker.names.infos[site.name].class_name
