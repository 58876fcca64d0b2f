"""What tables of rows show of a row."""

from __future__ import annotations

from collections.abc import Callable

from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.rows import Row


def own_time(phase: Phase) -> Callable[[Row], int]:
    """Own time in a phase, in nanoseconds."""
    return lambda row: row.phases[phase].self_ns


def device_time(row: Row) -> int:
    """Own time in all phases on the device's clock, in nanoseconds."""
    return sum(totals.device_self_ns for totals in row.phases.values())
