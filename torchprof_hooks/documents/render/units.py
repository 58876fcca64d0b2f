"""Times and bytes with units, which are chosen by Chainer's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import Final, get_args

from torchprof_hooks.profiles.names import ByteUnit, TimeUnit
from torchprof_hooks.profiles.options import check_choice

#: Nanoseconds in each unit, the largest first.
TIME_UNITS: Final = {"sec": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

#: Bytes in each unit, the smallest first.
BYTE_UNITS: Final = {
    unit: 1024**power
    for power, unit in enumerate(("B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB"))
}


#: Decimal prefixes of counts, the largest first.
_PREFIXES: Final = {
    prefix: 1000**power for power, prefix in reversed([*enumerate("kMGTPE", start=1)])
}


def check_unit(unit: str) -> None:
    """Raise ValueError (or TypeError) if `unit` is no `TimeUnit`."""
    check_choice("unit", unit, get_args(TimeUnit))


def check_byte_unit(unit: str) -> None:
    """Raise ValueError (or TypeError) if `unit` is no `ByteUnit`."""
    check_choice("unit", unit, get_args(ByteUnit))


def choose_unit(value_ns: float) -> str:
    """The largest unit in which the value is at least 1; "ns" if there is none."""
    return next((u for u, size in TIME_UNITS.items() if value_ns >= size), "ns")


def choose_byte_unit(value: float) -> str:
    """The largest unit in which the value is at least 1; B for 0 and below."""
    return next((u for u in reversed(BYTE_UNITS) if value >= BYTE_UNITS[u]), "B")


def format_time(value_ns: float, unit: str) -> str:
    """The value with two decimals and its unit: ``41.42sec``."""
    return _format(value_ns, unit, TIME_UNITS)


def best_time(value_ns: float) -> str:
    """The value in the unit that suits its magnitude."""
    return format_time(value_ns, choose_unit(abs(value_ns)))


def time_in_column(value_ns: float, most_ns: float) -> str:
    """The value in the unit that suits the largest one of its column; if that is larger
    than its own, three digits are left of it: ``0.00312sec``."""
    unit = choose_unit(most_ns)
    value = value_ns / TIME_UNITS[unit]
    digits = max(2, 2 - floor(log10(abs(value) or 1)))
    return f"{value:.{digits}f}{unit}"


def format_times(values_ns: Sequence[float], unit: str) -> list[str]:
    """All values of a table, in `unit`, or in units by this rule (see `TimeUnit`).
    ``auto`` chooses for the value that is farthest from 0, as for bytes."""
    check_unit(unit)
    if unit == "auto_foreach":
        return [best_time(value) for value in values_ns]
    if unit == "auto":
        unit = choose_unit(max(map(abs, values_ns), default=0))
    return [format_time(value, unit) for value in values_ns]


def format_bytes(value: int, unit: str) -> str:
    """The value with two decimals and its unit: ``1.50MB``."""
    return _format(value, unit, BYTE_UNITS)


def best_byte_format(value: int) -> str:
    """The value in the unit that suits its magnitude: ``-3.20MB``. It is negative if
    more bytes were freed than allocated."""
    return format_bytes(value, choose_byte_unit(abs(value)))


def best_count_format(value: float) -> str:
    """A count with two decimals and a decimal prefix: ``6.29M``."""
    return "".join(counted(value))


def counted(value: float) -> tuple[str, str]:
    """A count as a number with two decimals, and the decimal prefix of its unit."""
    prefix = next((p for p, size in _PREFIXES.items() if abs(value) >= size), "")
    return f"{value / _PREFIXES.get(prefix, 1):.2f}", prefix


def format_byte_column(values: Sequence[int], unit: str) -> list[str]:
    """All values of a column, in `unit`, or in units by this rule (see `ByteUnit`).

    ``auto`` chooses for the value that is farthest from 0: otherwise, a column of
    negative values would be in B, however large they are.
    """
    check_byte_unit(unit)
    if unit == "auto_foreach":
        return [best_byte_format(value) for value in values]
    if unit == "auto":
        unit = choose_byte_unit(max((abs(value) for value in values), default=0))
    return [format_bytes(value, unit) for value in values]


def _format(value: float, unit: str, units: Mapping[str, int]) -> str:
    return f"{value / units[unit]:3.2f}{unit}"
