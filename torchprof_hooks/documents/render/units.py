"""Times and bytes with units, which are chosen by Chainer's rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log10
from typing import Final, get_args

from torchprof_hooks.profiles.names import ByteUnit, TimeUnit
from torchprof_hooks.profiles.options import check_choice

#: Nanoseconds in each unit, the largest first.
TIME_UNITS: Final = {"sec": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

#: Bytes in each unit, the largest first.
BYTE_UNITS: Final = {
    unit: 1024 ** (7 - place)
    for place, unit in enumerate(("ZB", "EB", "PB", "TB", "GB", "MB", "KB", "B"))
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


def best_time(value_ns: float) -> str:
    """The value in the unit that suits its magnitude: ``41.42sec``."""
    return _best(value_ns, TIME_UNITS)


def best_byte_format(value: int) -> str:
    """The value in the unit that suits its magnitude: ``-3.20MB``. It is negative if
    more bytes were freed than allocated."""
    return _best(value, BYTE_UNITS)


def time_in_column(value_ns: float, most_ns: float) -> str:
    """The value in the unit that suits the largest one of its column; if that is larger
    than its own, three digits are left of it: ``0.00312sec``."""
    unit = _unit_for(most_ns, TIME_UNITS)
    value = value_ns / TIME_UNITS[unit]
    digits = max(2, 2 - floor(log10(abs(value) or 1)))
    return f"{value:.{digits}f}{unit}"


def format_times(values_ns: Sequence[float], unit: str) -> list[str]:
    """All values of a table, in `unit`, or in units by this rule (see `TimeUnit`)."""
    check_unit(unit)
    return _formatted(values_ns, unit, TIME_UNITS)


def format_byte_column(values: Sequence[int], unit: str) -> list[str]:
    """All values of a column, in `unit`, or in units by this rule (see `ByteUnit`)."""
    check_byte_unit(unit)
    return _formatted(values, unit, BYTE_UNITS)


def best_count_format(value: float) -> str:
    """A count with two decimals and a decimal prefix: ``6.29M``."""
    return "".join(counted(value))


def counted(value: float) -> tuple[str, str]:
    """A count as a number with two decimals, and the decimal prefix of its unit."""
    prefix = next((p for p, size in _PREFIXES.items() if abs(value) >= size), "")
    return f"{value / _PREFIXES.get(prefix, 1):.2f}", prefix


_Units = Mapping[str, int]


def _formatted(values: Sequence[float], unit: str, units: _Units) -> list[str]:
    """``auto`` chooses for the value that is farthest from 0: otherwise, a column of
    negative values would have the smallest unit, however large they are."""
    if unit == "auto_foreach":
        return [_best(value, units) for value in values]
    if unit == "auto":
        unit = _unit_for(max(map(abs, values), default=0), units)
    return [_written(value, unit, units) for value in values]


def _best(value: float, units: _Units) -> str:
    return _written(value, _unit_for(value, units), units)


def _unit_for(value: float, units: _Units) -> str:
    """The largest unit in which the value is at least 1; the smallest if none is."""
    for unit in units:
        if abs(value) >= units[unit]:
            break
    return unit


def _written(value: float, unit: str, units: _Units) -> str:
    return f"{value / units[unit]:.2f}{unit}"
