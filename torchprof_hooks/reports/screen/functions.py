"""The hottest functions, and the lines of the program that call most."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from torchprof_hooks.profiles.names import SortBy
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.reports.hottest import busy_device
from torchprof_hooks.reports.row_table import (
    OWN_TIMES,
    label,
    largest_first,
    number_columns,
)
from torchprof_hooks.reports.screen.terminal import Line
from torchprof_hooks.reports.source import Source
from torchprof_hooks.reports.table import (
    Column,
    TextColumn,
    share_column,
    table_lines,
)
from torchprof_hooks.reports.units import format_times

_FUNCTIONS_SHOWN: Final = 5
_PLACES_SHOWN: Final = 3
#: How many of the modules and functions that a line calls are named.
_NAMES_SHOWN: Final = 3
#: What stands before the line in the description of a module, or a function.
_NO_PLACE: Final = re.compile(r"(called first|made) at ")
_COLUMNS: Final = (*OWN_TIMES, Column[Row]("total", lambda row: row.self_ns))
#: Columns that are left out where there is no room for names, in this order.
_DISPENSABLE: Final = (("recompute",), ("device",), ("forward", "backward"))


def function_lines(source: Source, width: int) -> Iterator[Line]:
    """The functions with the most own time, if functions were measured; by the clock of
    a device if that always has something to do (see `busy_device`)."""
    rows = [row for row in source.rows("function") if row.kind == "function"]
    clock: SortBy = "device" if busy_device(source.functions) else "self"
    shown = largest_first(rows, clock, _COLUMNS)[:_FUNCTIONS_SHOWN]
    if not shown:
        return
    columns = number_columns(source.functions, shown, _COLUMNS, "auto")
    labels = ["function", *map(label, shown)]
    header, *lines = table_lines(labels, columns, width, _DISPENSABLE)
    yield Line(header, "title")
    yield from map(Line, lines)


def place_lines(source: Source, width: int) -> Iterator[Line]:
    """The lines of the program whose calls took most, with all that these do: calls of
    models, and of functions outside of them. A function that is called at several
    places is known by the first."""
    profile = source.functions
    times, names = _places(profile)
    shown = times.most_common(_PLACES_SHOWN)
    if not shown:
        return
    own = [place_ns for _, place_ns in shown]
    columns = [
        TextColumn("total", format_times(own, "auto")),
        share_column(own, profile.wall_ns),
    ]
    labels = ["line of the program"]
    labels += [f"{place} {_listed(names[place])}" for place, _ in shown]
    header, *lines = table_lines(labels, columns, width)
    yield Line(header, "title")
    yield from map(Line, lines)


def _places(profile: Profile) -> tuple[Counter[str], dict[str, list[str]]]:
    """The time of each line of the program, and the names of what it calls."""
    times: Counter[str] = Counter()
    names: defaultdict[str, list[str]] = defaultdict(list)
    for (path, _), totals in profile.cells.items():
        info = profile.modules[path[0]]
        place = _NO_PLACE.sub("", info.place)
        if place:
            times[place] += totals.self_ns
            if info.class_name not in names[place]:
                names[place].append(info.class_name)
    return times, names


def _listed(names: Sequence[str]) -> str:
    more = ["..."] if len(names) > _NAMES_SHOWN else []
    return ", ".join([*names[:_NAMES_SHOWN], *more])
