"""Chainer's TimerHook for modules."""

from __future__ import annotations

from collections.abc import Mapping

from torchprof_hooks.hooks.tables import TimeReport, TimerSummary
from torchprof_hooks.kernel.make_tracker import make_tracker
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.link_hooks.calls import MeasuredCalls
from torchprof_hooks.profiles.names import CALLED_PHASES, ModuleGrouping
from torchprof_hooks.profiles.options import check_flag


class TimerHook(TimeReport, MeasuredCalls):
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

    def __init__(
        self,
        *,
        backward: bool = False,
        by: ModuleGrouping = "class",
        history_size: int = 100_000,
    ) -> None:
        check_flag("backward", backward)
        super().__init__(by, history_size)
        self.backward = backward

    @property
    def call_history(self) -> list[tuple[str, float]]:
        """(name, seconds) of the newest calls, in the order in which they ended."""
        return [
            (self._name(*place), (end_ns - start_ns) / 1e9)
            for place, (start_ns, end_ns) in self._records.newest()
        ]

    def total_time(self) -> float:
        """Seconds in calls. Time in nested calls counts once."""
        total_ns = sum(
            int(tracker.log.total_ns[site.code])
            for tracker, site in self._records.places()
            if self._is_call(site) and not self._is_nested(site)
        )
        return total_ns / 1e9

    def summary(self) -> dict[str, TimerSummary]:
        """Sums by name, in the order in which the first calls ended."""
        summary: dict[str, TimerSummary] = {}
        for tracker, site in self._records.places():
            if site.name not in tracker.names.infos:
                continue  # an optimizer, or a whole pass
            sums: TimerSummary = {"elapsed_time": 0.0, "occurrence": 0}
            if self.backward:
                sums["backward_time"] = 0.0
            sums = summary.setdefault(self._name(tracker, site), sums)
            seconds = int(tracker.log.total_ns[site.code]) / 1e9
            if self._is_call(site):
                sums["elapsed_time"] += seconds
                sums["occurrence"] += int(tracker.log.calls[site.code])
            elif self.backward and site.phase == "backward":
                sums["backward_time"] += seconds
        return summary

    def _make_tracker(self, everywhere: bool) -> Tracker:
        tracker = make_tracker(self, everywhere, self.backward)
        self._records.follow(tracker, tracker.log)
        return tracker

    def _is_call(self, site: Site) -> bool:
        return site.phase in CALLED_PHASES

    def _is_nested(self, site: Site) -> bool:
        """Whether a counted outer call includes the time of calls at `site`. A call of
        another phase does not: a recompute is no time of the backward around it."""
        while not site.is_entry:
            site = site.caller
            if self._is_call(site):
                return True
        return False

    def _columns(self, summary: Mapping[str, TimerSummary]) -> dict[str, str]:
        columns = {"elapsed_time": "ElapsedTime"}
        if self.backward:
            columns["backward_time"] = "BackwardTime"
        return columns
