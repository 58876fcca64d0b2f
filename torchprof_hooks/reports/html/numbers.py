"""Numbers for people, as they stand in the page."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from torchprof_hooks.reports.units import (
    BYTE_UNITS,
    TIME_UNITS,
    choose_byte_unit,
    choose_unit,
)

#: What units are called where there is room for their signs.
_SIGNS: Final = {"sec": "s", "ms": "ms", "us": "\N{MICRO SIGN}s", "ns": "ns"}


def _fixed(value: float, digits: int) -> str:
    """The number as the page's script writes it: halves are rounded away from zero, not
    to the even digit."""
    return str(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


def time_text(value_ns: float) -> str:
    """``41.42 ms``."""
    unit = choose_unit(abs(value_ns))
    return f"{_fixed(value_ns / TIME_UNITS[unit], 2)} {_SIGNS[unit]}"


def bytes_text(value: int) -> str:
    """``1.50 MB``."""
    unit = choose_byte_unit(abs(value))
    return f"{_fixed(value / BYTE_UNITS[unit], 2)} {unit}"


def share_text(part: float, whole: float) -> str:
    """``12.3 %``, with a space that no line breaks at."""
    return f"{_fixed(100 * part / whole, 1)}\N{NO-BREAK SPACE}%" if whole else ""


def count_text(count: int) -> str:
    """``12,345``."""
    return f"{count:,}"
