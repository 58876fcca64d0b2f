"""Chainer's TimerHook for modules."""

from __future__ import annotations

from collections.abc import Mapping

from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.make_tracker import make_tracker
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.hooks.timer import CallTimes, TimerSummary
from torchprof_hooks.link_hook import LinkHook
from torchprof_hooks.profiles.names import (
    CALLED_PHASES,
    ModuleGrouping,
    check_grouping,
)
from torchprof_hooks.profiles.options import check_flag


class TimerHook(CallTimes, LinkHook):
    """Measures the time of every module call, as ``chainer.link_hooks.TimerHook`` does.

    Args:
        backward: whether to measure the backward of every call, too.
        by: sums are by class ("class", as in Chainer) or by qualified name ("module").
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

    LinkName is the class of the module, ElapsedTime the time in its calls, inner calls
    included, and Occurrence the number of calls. Since modules contain each
    other, the times of different names overlap; `total_time` counts every moment once.

    Unlike Chainer's, this hook does not wait for the device: the times are the host's.
    For device times see `torchprof_hooks.profile`.
    """

    name = "TimerHook"
    _name_header = "LinkName"

    def __init__(
        self,
        *,
        backward: bool = False,
        by: ModuleGrouping = "class",
        history_size: int = 100_000,
    ) -> None:
        check_grouping(by)
        check_flag("backward", backward)
        super().__init__(history_size)
        self.backward = backward
        self.by = by
        if backward:
            self._phases = ("backward",)

    def _make_tracker(self, everywhere: bool) -> Tracker:
        tracker = make_tracker(self, everywhere, self.backward)
        self._records.follow(tracker, tracker.log)
        return tracker

    def _is_call(self, site: Site) -> bool:
        return site.phase in CALLED_PHASES

    def _has_name(self, tracker: Tracker, site: Site) -> bool:
        return site.name in tracker.names.infos  # not optimizers, nor whole passes

    def _name(self, tracker: Tracker, site: Site) -> str:
        if self.by == "module":
            return site.name
        return tracker.names.infos[site.name].class_name

    def _columns(self, summary: Mapping[str, TimerSummary]) -> dict[str, str]:
        columns = {"elapsed_time": "ElapsedTime"}
        if self.backward:
            columns["backward_time"] = "BackwardTime"
        return columns
