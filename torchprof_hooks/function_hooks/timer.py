"""Chainer's TimerHook for functions."""

from __future__ import annotations

import sys
from typing import Any, Final, Literal, TextIO, TypedDict

from torchprof_hooks.capture.call_records import CallRecords
from torchprof_hooks.capture.function_tracker import FunctionTracker
from torchprof_hooks.capture.hook_tracker import make_function_tracker
from torchprof_hooks.capture.meter_tracker import meters_of
from torchprof_hooks.capture.meters import DeviceMeter
from torchprof_hooks.capture.site import Site
from torchprof_hooks.function_hook import FunctionHook
from torchprof_hooks.measure.device_clock import (
    DeviceClock,
    check_clock,
    default_device_clock,
)
from torchprof_hooks.profiles.names import MODULE_PHASES, Phase, check_grouping
from torchprof_hooks.profiles.options import check_file, check_flag

#: What names can be of.
GROUPINGS: Final = ("function", "module", "call")


class _Required(TypedDict):
    elapsed_time: float
    occurrence: int


class Summary(_Required, total=False):
    """Sums for one name, in seconds. `device_time` only where a device was measured,
    those of the phases only with ``phases=True``."""

    device_time: float
    forward_time: float
    backward_time: float
    recompute_time: float


class TimerHook(FunctionHook):
    """Measures the time of every function, as ``chainer.function_hooks.TimerHook``.

    Args:
        by: names are those of the functions ("function", as in Chainer), of the modules
            that call them ("module"), or both with the shapes of the inputs ("call":
            ``Net.fc: linear(32x64, 10x64, 10)``). The latter two need ``with hook:``.
        phases: tell forward, backward and recompute apart in the summary.
        history_size: how many calls `call_history` keeps. The sums are exact anyhow.
        device_clock: another clock for the device than that of ``torch.cuda``, which is
            used by default where this torch is built for it.

    Raises:
        ValueError: unknown `by`, or a negative `history_size`.

    Example:
        >>> hook = TimerHook()
        >>> with hook:
        ...     train_step(batch)
        >>> hook.print_report()
           FunctionName  ElapsedTime  Occurrence
                 linear      12.90ms          16
                   relu       0.51ms           8
          cross_entropy       0.32ms           2

    FunctionName is the name as the user wrote it, ElapsedTime the host's time in its
    calls, forward and backward, and Occurrence the number of these (a layer that is
    trained counts twice for each step). DeviceTime, where a device was measured, is the
    time between two stamps in the device's queue; nothing ever waits for it. Functions
    called by a custom Function's forward count as its part and for themselves;
    `total_time` counts every moment once.
    """

    name = "TimerHook"

    def __init__(
        self,
        *,
        by: Literal["function", "module", "call"] = "function",
        phases: bool = False,
        history_size: int = 100_000,
        device_clock: DeviceClock | None = None,
    ) -> None:
        check_grouping(by, GROUPINGS)
        check_flag("phases", phases)
        check_clock(device_clock)
        self.by = by
        self.phases = phases
        self._clock = device_clock or default_device_clock()
        self._records = CallRecords(history_size, is_function)

    def added(self, function: Any) -> None:
        """Called when the hook is registered: on `function`, or thread-wide (None).

        Raises:
            ValueError: modules are asked for, which a hook on one function never sees.
        """
        if function is not None and self.by != "function":
            raise ValueError(
                f"by={self.by!r} needs the whole thread: use `with hook:`, or "
                "by='function'"
            )

    @property
    def call_history(self) -> list[tuple[str, float]]:
        """(name, seconds) of the newest calls, in the order in which they ended."""
        return [
            (self._name(site), (end_ns - start_ns) / 1e9)
            for (_, site), (start_ns, end_ns) in self._records.newest()
        ]

    def total_time(self) -> float:
        """Seconds in functions: of nested calls, the outermost count."""
        total_ns = sum(
            int(tracker.log.total_ns[site.code])
            for tracker, site in self._records.places()
            if is_function(site) and not _is_part_of_function(site)
        )
        return total_ns / 1e9

    def summary(self) -> dict[str, Summary]:
        """Sums by name, in the order in which the first calls ended."""
        summary: dict[str, Summary] = {}
        for tracker, site in self._records.places():
            if is_function(site) and isinstance(tracker, FunctionTracker):
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
        summary = self.summary()
        columns = {
            field: header
            for field, header in _COLUMNS.items()
            if any(sums.get(field) for sums in summary.values())
        }
        report = render(self.name, "FunctionName", summary, unit, columns)
        print(report, file=file or sys.stdout)

    def _make_tracker(self, everywhere: bool) -> FunctionTracker:
        meters = [] if self._clock is None else [DeviceMeter(self._clock)]
        tracker = make_function_tracker(
            self,
            everywhere,
            meters,
            follows_modules=self.by != "function",
            by_shapes=self.by == "call",
        )
        self._records.follow(tracker, tracker.log)
        return tracker

    def _name(self, site: Site) -> str:
        if self.by == "function":
            return site.function or ""
        module = site.enclosing
        where = "(outside modules)" if module.module is None else module.name
        if self.by == "module":
            return where
        return site.name if module.module is None else f"{where}: {site.name}"

    def _add_up(
        self, summary: dict[str, Summary], tracker: FunctionTracker, site: Site
    ) -> None:
        empty: Summary = {"elapsed_time": 0.0, "occurrence": 0}
        if self.phases:
            for field in _PHASE_FIELDS.values():
                empty[field] = 0.0
        sums = summary.setdefault(self._name(site), empty)
        seconds = int(tracker.log.total_ns[site.code]) / 1e9
        sums["elapsed_time"] += seconds
        sums["occurrence"] += int(tracker.log.calls[site.code])
        for meter in meters_of(tracker, DeviceMeter):
            meter.settle()
            before = sums.get("device_time", 0.0)
            sums["device_time"] = before + meter.device_ns.get(site.code, 0) / 1e9
        if self.phases and site.phase in MODULE_PHASES:
            sums[_PHASE_FIELDS[site.phase]] += seconds


def is_function(site: Site) -> bool:
    """Whether calls at `site` are those of a function that is to be shown."""
    return site.function is not None and not site.is_hidden


def _is_part_of_function(site: Site) -> bool:
    """Whether the time of calls at `site` is counted in that of an outer function."""
    while not site.is_entry:
        site = site.caller
        if is_function(site):
            return True
    return False


_PhaseField = Literal["forward_time", "backward_time", "recompute_time"]
_PHASE_FIELDS: Final[dict[Phase, _PhaseField]] = {
    "forward": "forward_time",
    "backward": "backward_time",
    "recompute": "recompute_time",
}
_COLUMNS: Final = {
    "elapsed_time": "ElapsedTime",
    "device_time": "DeviceTime",
    "forward_time": "ForwardTime",
    "backward_time": "BackwardTime",
    "recompute_time": "RecomputeTime",
}
