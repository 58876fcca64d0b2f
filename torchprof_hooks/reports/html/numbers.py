"""Numbers for people, as they stand in the page."""

from __future__ import annotations

from typing import Final

from torchprof_hooks.reports.units import (
    BYTE_UNITS,
    TIME_UNITS,
    choose_byte_unit,
    choose_unit,
)

#: What units are called where there is room for their signs.
_SIGNS: Final = {"sec": "s", "ms": "ms", "us": "\N{MICRO SIGN}s", "ns": "ns"}


def time_text(value_ns: float) -> str:
    """``41.42 ms``."""
    unit = choose_unit(abs(value_ns))
    return f"{value_ns / TIME_UNITS[unit]:.2f} {_SIGNS[unit]}"


def bytes_text(value: int) -> str:
    """``1.50 MB``."""
    unit = choose_byte_unit(abs(value))
    return f"{value / BYTE_UNITS[unit]:.2f} {unit}"


def share_text(part: float, whole: float) -> str:
    """``12.3 %``, with a space that no line breaks at."""
    return f"{100 * part / whole:.1f}\N{NO-BREAK SPACE}%" if whole else ""


def count_text(count: int) -> str:
    """``12,345``."""
    return f"{count:,}"
