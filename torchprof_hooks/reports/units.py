"""Times for people: Chainer's units and its rules for choosing one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torchprof_hooks.profiles.options import check_choice

#: Nanoseconds in each unit, the largest first.
TIME_UNITS: Final = {"sec": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

#: What may be asked for: one unit for the table, chosen for its largest value ("auto"),
#: one for each cell ("auto_foreach"), or a unit by name.
CHOICES: Final = ("auto", "auto_foreach", *TIME_UNITS)


def check_unit(unit: str) -> None:
    """Raise ValueError (or TypeError), with the valid ones, if `unit` is no choice."""
    check_choice("unit", unit, CHOICES)


def choose_unit(value_ns: float) -> str:
    """The first unit, from the largest down, in which the value is at least 1."""
    return next((u for u, size in TIME_UNITS.items() if value_ns >= size), "ns")


def format_time(value_ns: float, unit: str) -> str:
    """The value with two decimals and its unit: ``41.42sec``."""
    return f"{value_ns / TIME_UNITS[unit]:3.2f}{unit}"


def format_times(values_ns: Sequence[float], unit: str) -> list[str]:
    """All values of a table, in the unit or by the rule that was asked for."""
    check_unit(unit)
    if unit == "auto":
        unit = choose_unit(max(values_ns, default=0))
    if unit == "auto_foreach":
        return [format_time(value, choose_unit(value)) for value in values_ns]
    return [format_time(value, unit) for value in values_ns]
