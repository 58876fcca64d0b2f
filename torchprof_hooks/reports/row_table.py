"""The rows of a profile in one table, however they are grouped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from torchprof_hooks.profiles.names import MODULE_GROUPINGS
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.row_columns import device_time, own_time
from torchprof_hooks.reports.table import (
    Column,
    count_column,
    filled_columns,
    fit_columns,
    format_table,
    percent,
    plural,
    share_column,
    wrap,
)
from torchprof_hooks.reports.units import format_times

_COLUMNS: Final = (
    Column("forward", own_time("forward"), is_kept=True),
    Column("backward", own_time("backward")),
    Column("recompute", own_time("recompute")),
    Column("device", device_time),
    Column[Row]("self", lambda row: row.self_ns),
    Column[Row]("total", lambda row: row.cumulative_ns),
)

#: Columns that may go where the table is narrow, the first first.
_DISPENSABLE: Final = (("recompute",), ("total",), ("forward", "backward"))


def render(
    profile: Profile,
    by: str,
    unit: str = "auto",
    *,
    width: int = 120,
    max_rows: int = 40,
) -> str:
    """The rows of `Profile.rows(by)`, the most own time first.

    Raises:
        ValueError: unknown `by` or unit.

    Example::

        2.00sec wall, by class: own time; total: with the calls that they make
        class              calls  forward  backward     self    total     %
        -------------------------------------------------------------------
        Linear                20  0.50sec   1.00sec  1.50sec  1.50sec  75.0
        (outside modules)                            0.30sec  0.30sec  15.0
        ... 3 more rows, 10.0 %
    """
    rows = sorted(profile.rows(by), key=lambda row: (-row.self_ns, row.name))
    shown = rows[:max_rows]
    lines = [wrap(_title(profile, by), width), _table(profile, by, shown, unit, width)]
    return "\n".join([*lines, *_rest(profile, rows[len(shown) :])])


def _title(profile: Profile, by: str) -> str:
    [wall] = format_times([profile.wall_ns], "auto_foreach")
    title = f"{wall} wall, by {by}: own time; total: with the calls that they make"
    if by not in MODULE_GROUPINGS and not profile.has_functions:
        title += " (functions were not measured)"
    return title


def _table(
    profile: Profile, by: str, rows: Sequence[Row], unit: str, width: int
) -> str:
    labels = [row.name + " [compiled]" * row.compiled for row in rows]
    columns = [
        count_column("calls", (row.calls for row in rows)),
        *filled_columns(_COLUMNS, rows, lambda all_ns: format_times(all_ns, unit)),
        share_column((row.self_ns for row in rows), profile.wall_ns),
    ]
    fitting = fit_columns([by, *labels], columns, width, _DISPENSABLE)
    return format_table(by, labels, fitting, width)


def _rest(profile: Profile, hidden: Sequence[Row]) -> Iterator[str]:
    if hidden:
        hidden_ns = sum(row.self_ns for row in hidden)
        share = percent(hidden_ns, profile.wall_ns)
        yield f"... {plural(len(hidden), 'more row')}, {share}"
