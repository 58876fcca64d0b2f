"""The functions of a profile in tables: each by itself, and each where it is called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from torchprof_hooks.profiles.names import (
    BACKWARD_PHASES,
    MODULES_NAME,
    SortBy,
)
from torchprof_hooks.profiles.operations.shape_ranges import with_ranges
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.hottest import summed_phases
from torchprof_hooks.reports.memory_tree import AT_LEAST, format_each
from torchprof_hooks.reports.row_table import (
    OWN_TIMES,
    hidden_line,
    label,
    largest_first,
    number_columns,
)
from torchprof_hooks.reports.table import (
    Column,
    filled_columns,
    fit_columns,
    format_table,
    wrap,
)
from torchprof_hooks.reports.time_tree import without_numbers

#: Rows that are shown unless the user says how many.
_FUNCTIONS_SHOWN: Final = 20
_CALL_SITES_SHOWN: Final = 10


def _used(row: Row) -> float:
    used_bytes = sum(
        totals.memory.used_bytes
        for phase, totals in row.phases.items()
        if phase not in BACKWARD_PHASES
    )
    return used_bytes / row.calls if row.calls else 0


def _peak(row: Row) -> int:
    return max(totals.memory.peak_bytes for totals in row.phases.values())


_TIMES: Final = (*OWN_TIMES, Column[Row]("total", lambda row: row.self_ns))
_BYTES: Final = (Column("used", _used), Column("peak", _peak))

#: Columns that are left out where the table is narrow, in this order.
_DISPENSABLE: Final = (
    ("used",),
    ("peak",),
    ("recompute",),
    ("forward", "backward"),
)

_TITLES: Final = {
    "function": "functions: own time, without the calls that they make",
    "call site": "call sites: own time of functions, by module (*: layers of a kind) "
    "and shapes",
}


def function_tables(
    profile: Profile, unit: str, width: int, max_rows: int | None, sort_by: SortBy
) -> Iterator[str]:
    """One line per function, and one for what modules did themselves; and one line per
    function, module that it is called in, and shapes of its inputs."""
    by_name, by_call = profile.rows("function"), with_ranges(profile).rows("call")
    modules = [row for row in by_name if row.name == MODULES_NAME]
    for noun, rows, below, most in (
        ("function", by_name, modules, _FUNCTIONS_SHOWN),
        ("call site", _layers_together(by_call), [], _CALL_SITES_SHOWN),
    ):
        functions = (row for row in rows if row.kind == "function")
        ranked = largest_first(functions, sort_by, _TIMES)
        shown = ranked[: max_rows or most]
        lines = _table(noun, [*shown, *below], profile, unit, width)
        rest = hidden_line(f"more {noun}", ranked[len(shown) :], profile)
        yield "\n".join([*lines, *rest])


def _layers_together(rows: Iterable[Row]) -> Iterator[Row]:
    """Calls of functions in layers of one kind (``blocks.0.norm``, ``blocks.1.norm``,
    ...) as one row: equal layers would fill the table."""
    kinds: dict[str, list[Row]] = {}
    for row in (row for row in rows if row.kind == "function"):
        kind = without_numbers(row.module) + row.name.removeprefix(row.module)
        kinds.setdefault(kind, []).append(row)
    for kind, alike in kinds.items():
        name = kind if len(alike) > 1 else alike[0].name
        yield replace(alike[0], name=name, phases=summed_phases(alike))


def _table(
    corner: str, rows: Sequence[Row], profile: Profile, unit: str, width: int
) -> Iterator[str]:
    labels = [corner, *map(label, rows)]
    columns = number_columns(profile, rows, _TIMES, unit)
    columns += filled_columns(_BYTES, rows, format_each)
    fitting = fit_columns(labels, columns, width, _DISPENSABLE)
    # The table of call sites comes below that of functions, which explains its columns.
    explained = _legends(profile) if corner == "function" else {}
    legends = [
        f"{c.header}: {explained[c.header]}" for c in fitting if c.header in explained
    ]
    missing = [c.header for c in columns if c not in fitting]
    if missing:
        legends.append(f"no room for {', '.join(missing)}")
    yield wrap("; ".join([_TITLES[corner], *legends]), width)
    yield format_table(labels, fitting, width)


def _legends(profile: Profile) -> dict[str, str]:
    """What columns mean that have to be explained, by their headers."""
    is_bound = profile.memory and profile.memory.peaks_are_lower_bounds
    return {
        "used": "own bytes per forward call",
        "peak": "highest rise in a call" + (f", {AT_LEAST}" if is_bound else ""),
    }
