"""Chainer's TimerHook for modules."""

from __future__ import annotations

import sys
import threading
from typing import Literal, TextIO, TypedDict

import numpy as np

from torchprof_hooks.capture.call_history import CallHistory
from torchprof_hooks.capture.hook_tracker import make_tracker
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.span_log import Int64s
from torchprof_hooks.capture.tracker import Tracker
from torchprof_hooks.link_hook import LinkHook
from torchprof_hooks.profiles.names import CALLED_PHASES, check_grouping


class _Required(TypedDict):
    elapsed_time: float
    occurrence: int


class Summary(_Required, total=False):
    """Sums for one name, in seconds; `backward_time` only with ``backward=True``."""

    backward_time: float


class TimerHook(LinkHook):
    """Measures the time of every module call, as ``chainer.link_hooks.TimerHook`` does.

    Args:
        backward: measure the backward of every call as well.
        by: names are class names ("class", as in Chainer) or qualified ones ("module").
        history_size: how many calls `call_history` keeps. The sums are exact anyhow.

    Raises:
        ValueError: unknown `by`, or a negative `history_size`.

    Example:
        >>> hook = TimerHook()
        >>> with hook:
        ...     trainer.run()
        >>> hook.print_report()
          LinkName  ElapsedTime  Occurrence
            Linear     41.42sec        2100
               MLP     42.09sec         700

    LinkName is the class of the module, ElapsedTime the time in its calls, with what
    they called in turn, and Occurrence the number of calls. Since modules contain each
    other, the times of different names overlap; `total_time` counts every moment once.

    Unlike Chainer's, this hook does not wait for the device: the times are the host's.
    For device times see `torchprof_hooks.profile`.
    """

    name = "TimerHook"

    def __init__(
        self,
        *,
        backward: bool = False,
        by: Literal["class", "module"] = "class",
        history_size: int = 100_000,
    ) -> None:
        check_grouping(by)
        if history_size < 0:
            raise ValueError(
                f"history_size must not be negative, but is {history_size}"
            )
        self.backward = backward
        self.by = by
        self._history = CallHistory(history_size)
        self._trackers: list[Tracker] = []
        self._reusable = threading.local()

    @property
    def call_history(self) -> list[tuple[str, float]]:
        """(name, seconds) of the newest calls, in the order in which they ended."""
        self._fold()
        return [(name, ns / 1e9) for name, ns in self._history.newest()]

    def total_time(self) -> float:
        """Seconds in module calls: of nested ones, the outermost count."""
        total_ns = sum(
            int(site_ns)
            for tracker in self._folded()
            for site, site_ns in zip(tracker.sites, tracker.log.total_ns, strict=False)
            if site.phase in CALLED_PHASES and not _is_nested(site)
        )
        return total_ns / 1e9

    def summary(self) -> dict[str, Summary]:
        """Sums by name, in the order in which the first calls ended."""
        summary: dict[str, Summary] = {}
        for tracker in self._folded():
            for code in tracker.log.first_ended:
                self._add_up(summary, tracker, code)
        return summary

    def print_report(self, unit: str = "auto", file: TextIO | None = None) -> None:
        """Print the summary as a table.

        Args:
            unit: "sec", "ms", "us", "ns", "auto" (one unit for the table, chosen for
                the largest value) or "auto_foreach" (one for each value).
            file: where to; standard output by default.

        Raises:
            ValueError: `unit` is none of these.
        """
        from torchprof_hooks.reports.timer import render

        report = render(self.name, self.summary(), unit, self.backward)
        print(report, file=file or sys.stdout)

    def _make_tracker(self, everywhere: bool) -> Tracker:
        if not everywhere:
            return self._new_tracker(everywhere)
        # Entered again in the same thread: the modules are known already.
        tracker: Tracker | None = getattr(self._reusable, "tracker", None)
        if tracker is None:
            tracker = self._reusable.tracker = self._new_tracker(everywhere)
        return tracker

    def _new_tracker(self, everywhere: bool) -> Tracker:
        tracker = make_tracker(self, everywhere, self.backward)
        tracker.log.on_fold = lambda spans: self._remember(tracker, spans)
        self._trackers.append(tracker)
        return tracker

    def _remember(self, tracker: Tracker, spans: Int64s) -> None:
        if self.backward:
            called = [site.phase in CALLED_PHASES for site in tracker.sites]
            spans = spans[np.array(called)[spans[:, 0]]]
        self._history.add(lambda code: self._name(tracker, tracker.sites[code]), spans)

    def _name(self, tracker: Tracker, site: Site) -> str:
        if self.by == "module":
            return site.name
        return tracker.names.infos[site.name].class_name

    def _add_up(self, summary: dict[str, Summary], tracker: Tracker, code: int) -> None:
        site, log = tracker.sites[code], tracker.log
        if site.name not in tracker.names.infos:
            return  # an optimizer, or a backward pass: no module
        name = self._name(tracker, site)
        sums = summary.setdefault(name, {"elapsed_time": 0.0, "occurrence": 0})
        seconds = int(log.total_ns[code]) / 1e9
        if site.phase in CALLED_PHASES:
            sums["elapsed_time"] += seconds
            sums["occurrence"] += int(log.calls[code])
        if self.backward:
            sums.setdefault("backward_time", 0.0)
        if site.phase == "backward":
            sums["backward_time"] += seconds

    def _folded(self) -> list[Tracker]:
        self._fold()
        return self._trackers

    def _fold(self) -> None:
        for tracker in self._trackers:
            tracker.log.fold()


def _is_nested(site: Site) -> bool:
    return site.caller is not None and site.caller.phase in CALLED_PHASES
