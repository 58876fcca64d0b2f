"""Chainer's TimerHook for modules."""

from __future__ import annotations

import sys
from typing import Literal, TextIO, TypedDict

from torchprof_hooks.capture.call_records import CallRecords
from torchprof_hooks.capture.hook_tracker import make_tracker
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.tracker import Tracker
from torchprof_hooks.link_hook import LinkHook
from torchprof_hooks.profiles.names import CALLED_PHASES, check_grouping
from torchprof_hooks.profiles.options import check_file, check_flag


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
        check_flag("backward", backward)
        self.backward = backward
        self.by = by
        self._records = CallRecords(history_size, _is_call)

    @property
    def call_history(self) -> list[tuple[str, float]]:
        """(name, seconds) of the newest calls, in the order in which they ended."""
        return [
            (self._name(*place), (end_ns - start_ns) / 1e9)
            for place, (start_ns, end_ns) in self._records.newest()
        ]

    def total_time(self) -> float:
        """Seconds in module calls: of nested ones, the outermost count."""
        total_ns = sum(
            int(tracker.log.total_ns[site.code])
            for tracker, site in self._records.places()
            if _is_call(site) and not _is_nested(site)
        )
        return total_ns / 1e9

    def summary(self) -> dict[str, Summary]:
        """Sums by name, in the order in which the first calls ended."""
        summary: dict[str, Summary] = {}
        for tracker, site in self._records.places():
            if site.name in tracker.names.infos:  # no optimizer, nor a whole pass
                self._add_up(summary, tracker, site)
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

        check_file("file", file)
        columns = {"elapsed_time": "ElapsedTime"}
        if self.backward:
            columns["backward_time"] = "BackwardTime"
        report = render(self.name, "LinkName", self.summary(), unit, columns)
        print(report, file=file or sys.stdout)

    def _make_tracker(self, everywhere: bool) -> Tracker:
        tracker = make_tracker(self, everywhere, self.backward)
        self._records.follow(tracker, tracker.log)
        return tracker

    def _name(self, tracker: Tracker, site: Site) -> str:
        if self.by == "module":
            return site.name
        return tracker.names.infos[site.name].class_name

    def _add_up(
        self, summary: dict[str, Summary], tracker: Tracker, site: Site
    ) -> None:
        name = self._name(tracker, site)
        sums = summary.setdefault(name, {"elapsed_time": 0.0, "occurrence": 0})
        seconds = int(tracker.log.total_ns[site.code]) / 1e9
        if _is_call(site):
            sums["elapsed_time"] += seconds
            sums["occurrence"] += int(tracker.log.calls[site.code])
        if self.backward:
            sums.setdefault("backward_time", 0.0)
        if site.phase == "backward":
            sums["backward_time"] += seconds


def _is_call(site: Site) -> bool:
    return site.phase in CALLED_PHASES


def _is_nested(site: Site) -> bool:
    return site.caller is not None and site.caller.phase in CALLED_PHASES
