"""Chainer's TimerHook for functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.make_tracker import make_function_tracker
from torchprof_hooks.capture.tracking.meters.device import device_meters
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.function_hook import FunctionHook
from torchprof_hooks.hooks.timer import CallTimes, TimerSummary
from torchprof_hooks.profiles.names import (
    FUNCTION_GROUPINGS,
    MODULE_PHASES,
    FunctionGrouping,
    check_grouping,
)
from torchprof_hooks.profiles.options import check_flag

_COLUMNS: Final = {
    "elapsed_time": "ElapsedTime",
    "device_time": "DeviceTime",
    "forward_time": "ForwardTime",
    "backward_time": "BackwardTime",
    "recompute_time": "RecomputeTime",
}


class TimerHook(CallTimes, FunctionHook):
    """Measures the time of every function, as ``chainer.function_hooks.TimerHook``.

    Args:
        by: sums are by function ("function", as in Chainer), by the module that calls
            it ("module"), or by both and the shapes of the inputs ("call":
            ``Net.fc: linear(32x64, 10x64, 10)``). The latter two need ``with hook:``.
        phases: whether the summary has times of forward, backward and recompute, too.
        history_size: how many calls `call_history` keeps. The sums are exact anyhow.

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

    FunctionName is the name as the user wrote it. ElapsedTime: the host's time in its
    calls, forward and backward. Occurrence: the number of these (two for each step of a
    layer that is trained). DeviceTime, if a device was measured: the time between two
    stamps in the device's queue; calls never wait for the device. A function called by
    a custom Function's forward counts both for that Function and for itself;
    `total_time` counts every moment once.
    """

    name = "TimerHook"
    _name_header = "FunctionName"

    def __init__(
        self,
        *,
        by: FunctionGrouping = "function",
        phases: bool = False,
        history_size: int = 100_000,
    ) -> None:
        check_grouping(by, FUNCTION_GROUPINGS)
        check_flag("phases", phases)
        super().__init__(history_size)
        self.by = by
        self.phases = phases
        if phases:
            self._phases = MODULE_PHASES

    def added(self, function: Any) -> None:
        """Called when the hook is registered: on `function`, or thread-wide (None).

        Raises:
            ValueError: `by` asks for modules, which a hook on one function never sees.
        """
        if function is not None and self.by != "function":
            raise ValueError(
                f"by={self.by!r} needs the whole thread: use `with hook:`, or "
                "by='function'"
            )

    def _make_tracker(self, everywhere: bool) -> Tracker:
        tracker = make_function_tracker(
            self,
            everywhere,
            device_meters(),
            follows_modules=self.by != "function",
            by_shapes=self.by == "call",
        )
        self._records.follow(tracker, tracker.log)
        return tracker

    def _is_call(self, site: Site) -> bool:
        return site.function is not None and not site.is_hidden

    def _name(self, tracker: Tracker, site: Site) -> str:
        if self.by == "function":
            return site.function or ""
        module = site.enclosing
        where = "(outside modules)" if module.module is None else module.name
        if self.by == "module":
            return where
        return site.name if module.module is None else f"{where}: {site.name}"

    def _columns(self, summary: Mapping[str, TimerSummary]) -> dict[str, str]:
        return {
            field: header
            for field, header in _COLUMNS.items()
            if any(sums.get(field) for sums in summary.values())
        }
