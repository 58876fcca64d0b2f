"""Chainer's TimerHook for functions."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Final, Literal

from torchprof_hooks.function_hooks.calls import MeasuredCalls, OpenCall
from torchprof_hooks.hooks.tables import TimeReport, TimerSummary
from torchprof_hooks.instruments.functions.call import FunctionCall
from torchprof_hooks.profiles.names import (
    FUNCTION_GROUPINGS,
    FunctionGrouping,
    Phase,
    check_grouping,
    function_call_name,
)
from torchprof_hooks.profiles.options import check_flag

_Field = Literal["forward_time", "backward_time", "recompute_time"]
#: Fields of phases in the summary, and their headers in the table.
_PHASES: Final[dict[Phase, tuple[_Field, str]]] = {
    "forward": ("forward_time", "ForwardTime"),
    "backward": ("backward_time", "BackwardTime"),
    "recompute": ("recompute_time", "RecomputeTime"),
}


class TimerHook(TimeReport, MeasuredCalls):
    """Measures the time of every function, as ``chainer.function_hooks.TimerHook``.

    Args:
        by: sums are by function ("function", as in Chainer), by the module that calls
            it ("module"), or by both and the shapes of the inputs ("call":
            ``Net.fc: linear(32x64, 10x64, 10)``).
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
    layer that is trained). A function called by a custom Function counts both for that
    Function and for itself; `total_time` counts every moment once. The hook never waits
    for a device: ``profile(functions=True)`` has device times.
    """

    name = "TimerHook"

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

    @property
    def call_history(self) -> list[tuple[str, float]]:
        """(name, seconds) of the newest calls, in the order in which they ended."""
        return [(name, ns / 1e9) for name, (ns,), _ in self._records.history]

    def total_time(self) -> float:
        """Seconds in calls. Time in nested calls counts once."""
        return sum(sums.outermost[0] for sums in self._records.sums.values()) / 1e9

    def summary(self) -> dict[str, TimerSummary]:
        """Sums by name, in the order in which the first calls ended."""
        found: dict[str, TimerSummary] = {}
        for name, sums in self._records.sums.items():
            found[name] = {
                "elapsed_time": sums.total(0) / 1e9,
                "occurrence": sums.calls,
            }
            for phase, (field, _) in _PHASES.items() if self.phases else ():
                [ns] = sums.by_phase.get(phase, [0])
                found[name][field] = ns / 1e9
        return found

    def _read(self, innermost: OpenCall | None) -> tuple[int, ...]:
        return (perf_counter_ns(),)

    def _name(self, call: FunctionCall) -> str:
        if self.by == "function":
            return call.name
        where = call.module_path or "(outside modules)"
        if self.by == "module":
            return where
        name = function_call_name(call.name, call.input_shapes)
        return f"{call.module_path}: {name}" if call.module_path else name

    def _columns(self, summary: Mapping[str, TimerSummary]) -> dict[str, str]:
        columns = {"elapsed_time": "ElapsedTime"}
        for field, header in _PHASES.values():
            if any(sums.get(field) for sums in summary.values()):
                columns[field] = header
        return columns
