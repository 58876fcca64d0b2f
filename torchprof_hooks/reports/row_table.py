"""The rows of a profile in one table, however they are grouped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from torchprof_hooks.profiles.names import (
    MODULE_GROUPINGS,
    SORT_KEYS,
    Grouping,
    Phase,
    SortBy,
)
from torchprof_hooks.profiles.options import check_choice
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.table import (
    Column,
    Table,
    TextColumn,
    count_column,
    filled_columns,
    format_table,
    percent,
    plural,
    share_column,
    wrap,
)
from torchprof_hooks.reports.units import best_time, format_times

R = TypeVar("R", bound=Row)


def own_time(phase: Phase) -> Callable[[Row], int]:
    """Own time in a phase, in nanoseconds."""
    return lambda row: row.phases[phase].self_ns


def device_time(row: Row) -> int:
    """Own time in all phases on the device's clock, in nanoseconds."""
    return sum(totals.device_self_ns for totals in row.phases.values())


def inclusive_time(phase: Phase) -> Callable[[Row], int]:
    """Time in a phase with inner calls, in nanoseconds."""
    return lambda row: row.phases[phase].cumulative_ns


def inclusive_device_time(row: Row) -> int:
    """Time in all phases with inner calls, on the device's clock, in nanoseconds."""
    return sum(totals.device_cumulative_ns for totals in row.phases.values())


#: Own times; each table adds what it calls the total.
OWN_TIMES: Final = (
    Column("forward", own_time("forward"), is_kept=True),
    Column("backward", own_time("backward")),
    Column("recompute", own_time("recompute")),
    Column("device", device_time),
)
_COLUMNS: Final = (
    *OWN_TIMES,
    Column[Row]("self", lambda row: row.self_ns),
    Column[Row]("total", lambda row: row.cumulative_ns),
)

#: Columns that are left out where the table is narrow, in this order.
_DISPENSABLE: Final = (("recompute",), ("total",), ("forward", "backward"))


def render(
    profile: Profile,
    by: Grouping,
    *,
    width: int = 120,
    max_rows: int | None = None,
    sort_by: SortBy | None = None,
) -> str:
    """The rows of `Profile.rows(by)`, by default the most own time first.

    max_rows: 40 by default.

    Raises:
        ValueError: unknown `by` or `sort_by`.
    """
    rows = largest_first(profile.rows(by), sort_by or "self", _COLUMNS)
    shown = rows[: max_rows or 40]
    lines = [
        wrap(_title(profile, by), width),
        format_table(*row_table(profile, by, shown), width, _DISPENSABLE),
        *hidden_line("more row", rows[len(shown) :], profile),
    ]
    return "\n".join(lines)


def row_table(
    profile: Profile, by: Grouping, rows: Sequence[Row], unit: str = "auto"
) -> Table:
    """Calls and times of rows of a profile."""
    columns = number_columns(profile, rows, _COLUMNS, unit)
    return Table([by, *map(label, rows)], columns)


def _title(profile: Profile, by: Grouping) -> str:
    wall = best_time(profile.wall_ns)
    title = f"{wall} wall, by {by}: own time; total: with the calls that they make"
    if by not in MODULE_GROUPINGS and not profile.has_functions:
        title += " (functions were not measured)"
    return title


def largest_first(
    rows: Iterable[R], sort_by: SortBy, columns: Sequence[Column[R]]
) -> list[R]:
    """Rows sorted by one of the columns, equal ones by own time and by name.

    Raises:
        ValueError: `sort_by` is not a column.
    """
    value = sort_value(sort_by, columns)
    return sorted(rows, key=lambda row: (-value(row), -row.self_ns, row.name))


def sort_value(sort_by: SortBy, columns: Sequence[Column[R]]) -> Callable[[R], float]:
    """The number in a row by which it is sorted.

    Raises:
        ValueError (or TypeError): `sort_by` is not a column.
    """
    check_choice("sort_by", sort_by, SORT_KEYS)
    if sort_by == "calls":
        return lambda row: row.calls
    if sort_by == "self":  # trees have one such column for each phase
        return lambda row: row.self_ns
    return next(column.value for column in columns if column.header == sort_by)


def label(row: Row) -> str:
    """The name, marked if the row runs compiled code."""
    return row.name + " [compiled]" * row.compiled


def number_columns(
    profile: Profile, rows: Sequence[R], times: Sequence[Column[R]], unit: str
) -> list[TextColumn]:
    """Calls, times and the share of the wall time that is own time."""
    return [
        count_column("calls", (row.calls for row in rows)),
        *filled_columns(times, rows, lambda all_ns: format_times(all_ns, unit)),
        share_column((row.self_ns for row in rows), profile.wall_ns),
    ]


def hidden_line(noun: str, hidden: Sequence[Row], profile: Profile) -> Iterator[str]:
    """A line with the number of hidden rows and their share of the wall time."""
    if hidden:
        share = percent(sum(row.self_ns for row in hidden), profile.wall_ns)
        yield f"... {plural(len(hidden), noun)}, {share}"
