"""The text report: the first screen; and a profile as a tree in a table, with tables
of what else it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, TextIO

from torchprof_hooks.profiles.names import SORT_KEYS, SortBy
from torchprof_hooks.profiles.options import check_choice, check_flag, check_whole
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.flop_tree import flop_tree
from torchprof_hooks.reports.function_tables import function_tables
from torchprof_hooks.reports.header import header, nothing_text
from torchprof_hooks.reports.memory_tree import memory_tree
from torchprof_hooks.reports.ranks.collectives import collective_lines
from torchprof_hooks.reports.screen.screen import profile_screen
from torchprof_hooks.reports.screen.terminal import takes_colour
from torchprof_hooks.reports.table import wrap
from torchprof_hooks.reports.time_tree import (
    footnotes,
    placed_nodes,
    select_nodes,
    time_tree,
)
from torchprof_hooks.reports.units import check_unit

#: Modules that are shown unless the user says how many.
_MODULES_SHOWN: Final = 40


class TableLayout(NamedTuple):
    """How tables are to look; for the fields see `Reportable.report`."""

    unit: str = "auto"
    width: int = 120
    max_rows: int | None = None
    sort_by: SortBy | None = None

    def checked(self) -> TableLayout:
        """The same layout, with sizes as int. Raises TypeError or ValueError if a field
        is not valid."""
        check_unit(self.unit)
        width = check_whole("width", self.width, least=1)
        if self.sort_by is not None:
            check_choice("sort_by", self.sort_by, SORT_KEYS)
        if self.max_rows is None:
            return self._replace(width=width)
        return self._replace(
            width=width, max_rows=check_whole("max_rows", self.max_rows, least=1)
        )


def render(
    profile: Profile,
    unit: str = "auto",
    *,
    width: int = 120,
    max_rows: int | None = None,
    sort_by: SortBy | None = None,
) -> str:
    """The report as text; for the parameters see `Reportable.report`.

    Raises:
        ValueError: unknown unit or order, or no rows to show.

    Below the tree of modules, if functions were recorded, tables of functions, of the
    places where they are called, and of floating-point operations (`flop_tree`); if
    there are other processes, what was exchanged with them; if memory was measured, the
    same tree with bytes.
    """
    layout = TableLayout(unit, width, max_rows, sort_by).checked()
    lines = [header(profile), *map("not measured: {}".format, profile.not_measured)]
    above = "\n".join(wrap(line, width) for line in lines)
    if profile.is_empty:
        texts = nothing_text(profile).splitlines()
        return "\n".join([above, "", *(wrap(text, width) for text in texts)])
    return f"{above}\n\n{tables(profile, layout)}"


def report(
    profile: Profile,
    layout: TableLayout,
    *,
    full: bool,
    corrected: bool,
    stream: TextIO | None = None,
) -> str:
    """See `Reportable.report`.

    stream: where it will be printed.
    """
    check_flag("full", full)
    check_flag("corrected", corrected)
    layout = layout.checked()
    shown = profile.corrected() if corrected else profile
    if not full and layout != TableLayout(width=layout.width):
        return render(shown, **layout._asdict())
    colour = takes_colour(stream)
    screen = profile_screen(
        profile, corrected=corrected, width=layout.width, colour=colour
    )
    if not full or profile.is_empty:
        return screen
    return f"{screen}\n\n{tables(shown, layout)}"


def tables(profile: Profile, layout: TableLayout) -> str:
    """What `render` has below its header."""
    return "\n\n".join(_sections(profile, layout))


def _sections(profile: Profile, layout: TableLayout) -> Iterator[str]:
    unit, width, max_rows, sort_by = layout
    nodes = placed_nodes(profile, sort_by)
    shown = select_nodes(nodes, max_rows or _MODULES_SHOWN, sort_by)
    notes = (wrap(line, width) for line in footnotes(profile, nodes, shown))
    yield "\n".join([time_tree(profile, shown, unit, width), *notes])
    if profile.has_functions:
        yield from function_tables(profile, unit, width, max_rows, sort_by or "self")
        if operations := flop_tree(profile, shown, width):
            yield operations
    if profile.collectives:
        yield "\n".join(collective_lines(profile.collectives, width))
    if profile.memory:
        yield memory_tree(profile, profile.memory, shown, width)
