"""Rows for programs: all numbers, one line for each row and phase."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Final

from torchprof_hooks.documents.build.view import View
from torchprof_hooks.documents.document import Column, Table, Unit
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.totals import NOTHING

#: Fields of `Row` that tell what it stands for.
_NAMES: Final = ("class_name", "kind", "module", "compiled")
#: A number of a row in a phase: name, field of `Totals`, unit.
_Number = tuple[str, str, Unit]
_TIMES: Final[tuple[_Number, ...]] = (
    ("calls", "calls", "count"),
    ("self_ns", "self_ns", "ns"),
    ("cumulative_ns", "cumulative_ns", "ns"),
    *((f"{each}_ns", f"{each}_ns", "ns") for each in ("mean", "std", "min", "max")),
)
_DEVICE_TIMES: Final[tuple[_Number, ...]] = (
    ("device_self_ns", "device_self_ns", "ns"),
    ("device_cumulative_ns", "device_cumulative_ns", "ns"),
)
_BYTES: Final[tuple[_Number, ...]] = (
    ("self_used_bytes", "memory.used_bytes", "bytes"),
    ("self_acquired_bytes", "memory.acquired_bytes", "bytes"),
    ("self_retained_bytes", "memory.retained_bytes", "bytes"),
    ("cumulative_used_bytes", "memory_cumulative.used_bytes", "bytes"),
    ("cumulative_acquired_bytes", "memory_cumulative.acquired_bytes", "bytes"),
    ("cumulative_retained_bytes", "memory_cumulative.retained_bytes", "bytes"),
    ("peak_bytes", "memory_cumulative.peak_bytes", "bytes"),
)
_OPERATIONS: Final[tuple[_Number, ...]] = (
    ("self_flops", "flops", "flops"),
    ("cumulative_flops", "flops_cumulative", "flops"),
    ("self_counted_ns", "counted_ns", "ns"),
    ("cumulative_counted_ns", "counted_cumulative_ns", "ns"),
)
#: The names of the tables of rows in a report for programs, by grouping.
_TABLES: Final[Mapping[Grouping, str]] = {
    "module": "modules",
    "class": "classes",
    "function": "functions",
    "call": "calls",
}


def tables_of_rows(view: View, by: Grouping | None) -> Iterator[Table]:
    """The rows of the loop: by one grouping, or a table for each of modules, classes
    and functions."""
    usual: tuple[Grouping, ...] = ("module", "class", "function")
    for each in (by,) if by else usual[: 2 + view.shown.has_functions]:
        name = _TABLES[each]
        title = f"{name.title()} by phase{view.of_shown and ', of the loop'}"
        yield replace(rows_table(view.shown, each), name=name, title=title)


def rows_table(profile: ProfileData, by: Grouping) -> Table:
    """A line for each row of `Profile.rows(by)` and each of its phases. The column
    ``self_ns`` adds up to the wall time. The table has columns of device times, bytes
    and operations only if these were measured: a 0 would claim that they were.

    Raises:
        ValueError: unknown `by`.
    """
    found = [
        (row, phase, totals)
        for row in profile.rows(by)
        for phase, totals in row.phases.items()
        if totals is not NOTHING and totals != NOTHING
    ]
    numbers = [*_TIMES]
    numbers += _DEVICE_TIMES if profile.devices else ()
    numbers += _BYTES if profile.memory else ()
    numbers += _OPERATIONS if profile.has_functions else ()
    columns = [Column(n, "text", [getattr(r, n) for r, _, _ in found]) for n in _NAMES]
    columns.append(Column("phase", "text", [phase for _, phase, _ in found]))
    for name, field, unit in numbers:
        get = attrgetter(field)
        values = [get(totals) for _, _, totals in found]
        columns.append(Column(name, unit, values, shows_zeros=True))
    return Table("rows", "", by, [row.name for row, _, _ in found], columns)
