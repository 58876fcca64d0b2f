"""Bytes for people: Chainer's units and its rules for choosing one."""

from __future__ import annotations

from typing import Final

from torchprof_hooks.profiles.options import check_choice

#: Bytes in each unit, the smallest first.
BYTE_UNITS: Final = {
    unit: 1024**power
    for power, unit in enumerate(("B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB"))
}

#: What may be asked for: one unit for each column ("auto"), one for each cell
#: ("auto_foreach"), or a unit by name.
BYTE_CHOICES: Final = ("auto", "auto_foreach", *BYTE_UNITS)


def check_byte_unit(unit: str) -> None:
    """Raise ValueError (or TypeError), with the valid ones, if `unit` is no choice."""
    check_choice("unit", unit, BYTE_CHOICES)


def choose_byte_unit(value: int) -> str:
    """The largest unit in which the value is at least 1; B for 0 and below."""
    return next((u for u in reversed(BYTE_UNITS) if value >= BYTE_UNITS[u]), "B")


def format_bytes(value: int, unit: str) -> str:
    """The value with two decimals and its unit: ``1.50MB``."""
    return f"{value / BYTE_UNITS[unit]:3.2f}{unit}"


def best_byte_format(value: int) -> str:
    """The value in its own unit. More bytes can be freed than allocated: a value below
    0 has the unit of its magnitude, ``-3.20MB``."""
    return format_bytes(value, choose_byte_unit(abs(value)))


def format_byte_column(values: list[int], unit: str) -> list[str]:
    """All values of a column, in the unit or by the rule that was asked for.

    ``auto`` chooses for the value that is farthest from 0: a column of negative values
    would otherwise be in B, however large they are.
    """
    check_byte_unit(unit)
    if unit == "auto_foreach":
        return [best_byte_format(value) for value in values]
    if unit == "auto":
        unit = choose_byte_unit(max((abs(value) for value in values), default=0))
    return [format_bytes(value, unit) for value in values]
