"""The functions of a profile in tables: each by itself, and each where it is called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

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
from torchprof_hooks.reports.operations.roofline_columns import (
    ROOFLINE_LEGENDS,
    roofline_columns,
    roofline_legend,
)
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

#: Columns that may go where a table is narrow, the first first.
_DISPENSABLE: Final = (
    ("moved",),
    ("used",),
    ("peak",),
    ("FLOP/byte",),
    ("roof",),
    ("recompute",),
    ("forward", "backward"),
)


class _Heading(NamedTuple):
    corner: str
    title: str
    legends: Mapping[str, str]  # of columns that have to be explained


_FUNCTIONS: Final = _Heading(
    "function",
    "functions: own time, without the calls that they make",
    {
        "used": "used: own bytes per forward call",
        "peak": "peak: highest rise in a call",
        **ROOFLINE_LEGENDS,
    },
)
_CALL_SITES: Final = _Heading(
    "call site",
    "call sites: own time of functions, by module (*: layers of a kind) and shapes",
    {},  # the columns are those of the table above
)


def function_table(
    profile: Profile, unit: str, width: int, max_rows: int | None, sort_by: SortBy
) -> str:
    """One line per function, and one for what modules did themselves."""
    rows = profile.rows(by="function")
    modules = [row for row in rows if row.name == MODULES_NAME]
    functions = [row for row in rows if row.kind == "function"]
    functions = largest_first(functions, sort_by, _TIMES)
    shown = functions[: max_rows or _FUNCTIONS_SHOWN]
    lines = _table(_FUNCTIONS, [*shown, *modules], profile, unit, width)
    rest = hidden_line("more function", functions[len(shown) :], profile)
    return "\n".join([*lines, *rest])


def call_site_table(
    profile: Profile, unit: str, width: int, max_rows: int | None, sort_by: SortBy
) -> str:
    """One line per function, module that it is called in, and shapes of its inputs."""
    called = with_ranges(profile).rows(by="call")
    functions = (row for row in called if row.kind == "function")
    sites = largest_first(_layers_together(functions), sort_by, _TIMES)
    shown = sites[: max_rows or _CALL_SITES_SHOWN]
    lines = _table(_CALL_SITES, shown, profile, unit, width)
    rest = hidden_line("more call site", sites[len(shown) :], profile)
    return "\n".join([*lines, *rest])


def _layers_together(rows: Iterable[Row]) -> Iterator[Row]:
    """Calls in layers of one kind (``blocks.0.norm``, ``blocks.1.norm``, ...) as one
    row: equal layers would fill the table."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kind = without_numbers(row.module) + row.name.removeprefix(row.module)
        kinds.setdefault(kind, []).append(row)
    for kind, alike in kinds.items():
        name = kind if len(alike) > 1 else alike[0].name
        yield replace(alike[0], name=name, phases=summed_phases(alike))


def _table(
    heading: _Heading,
    rows: Sequence[Row],
    profile: Profile,
    unit: str,
    width: int,
) -> Iterator[str]:
    labels = [heading.corner, *map(label, rows)]
    columns = number_columns(profile, rows, _TIMES, unit)
    columns += filled_columns(_BYTES, rows, format_each)
    columns += roofline_columns(profile, rows)
    fitting = fit_columns(labels, columns, width, _DISPENSABLE)
    explained = heading.legends
    legends = [explained[c.header] for c in fitting if c.header in explained]
    if profile.memory and profile.memory.peaks_are_lower_bounds:
        legends = [t + f", {AT_LEAST}" * t.startswith("peak") for t in legends]
    legends = [roofline_legend(text, profile) for text in legends]
    missing = [c.header for c in columns if c not in fitting]
    if missing:
        legends.append(f"no room for {', '.join(missing)}")
    yield wrap("; ".join([heading.title, *legends]), width)
    yield format_table(labels, fitting, width)
