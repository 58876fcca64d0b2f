"""All numbers of the rows of a profile, one line for each row and phase."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from torchprof_hooks.documents.document import Column, Table, Unit
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.totals import NOTHING

#: What a row stands for.
_NAMES: Final = ("class_name", "kind", "module", "compiled")
#: Numbers of a row in a phase: name, what it is of `Totals`, unit.
_Number = tuple[str, str, Unit]
_TIMES: Final[tuple[_Number, ...]] = (
    ("calls", "calls", "count"),
    *(
        (name, name, "ns")
        for name in (
            *("self_ns", "cumulative_ns"),
            *("mean_ns", "std_ns", "min_ns", "max_ns"),
        )
    ),
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


def rows_table(profile: ProfileData, by: Grouping) -> Table:
    """A line for each row of `Profile.rows(by)` and each of its phases. The column
    ``self_ns`` adds up to the wall time. Columns of device times, bytes and operations
    are there if they were measured: a 0 would claim that they were.

    Raises:
        ValueError: unknown `by`.
    """
    found = [
        (row, phase, totals)
        for row in profile.rows(by)
        for phase, totals in row.phases.items()
        if totals != NOTHING
    ]
    numbers = [*_TIMES]
    numbers += _DEVICE_TIMES if profile.devices else ()
    numbers += _BYTES if profile.memory else ()
    numbers += _OPERATIONS if profile.has_functions else ()
    columns = [Column(n, "text", [getattr(r, n) for r, _, _ in found]) for n in _NAMES]
    columns.append(Column("phase", "text", [phase for _, phase, _ in found]))
    for name, field, unit in numbers:
        get = attrgetter(field)
        columns.append(Column(name, unit, [get(totals) for _, _, totals in found]))
    return Table("rows", "", by, [row.name for row, _, _ in found], columns)
