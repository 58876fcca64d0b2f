"""The text report: the first screen; and a profile as a tree in a table, with tables
of what else it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TextIO

from torchprof_hooks.profiles.names import SORT_KEYS, SortBy
from torchprof_hooks.profiles.options import check_choice, check_flag, check_whole
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.reports.function_tables import call_site_table, function_table
from torchprof_hooks.reports.header import header
from torchprof_hooks.reports.memory_tree import memory_tree
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

    Example::

        torchprof_hooks: 2.00sec wall, 10 steps of 180.00ms (median 180.00ms,
      90 % within 185.00ms) after the first of 0.38sec, 97.5 % in modules and ...

        module            calls  forward     self  backward      self    total      %
        ----------------------------------------------------------------------------
        Net                  10  1.00sec  50.00ms  500.00ms   10.00ms  1.50sec   75.0
          body: Linear       10 ...

    Below that, if functions were recorded, tables of functions and of the places where
    they are called; if memory was measured, the same tree with bytes.
    """
    max_rows = _check_layout(unit, width, max_rows, sort_by)
    lines = [header(profile), *map("not measured: {}".format, profile.not_measured)]
    above = "\n".join(wrap(line, width) for line in lines)
    if profile.is_empty:
        return f"{above}\n\nNo module was called: there is nothing to report."
    return f"{above}\n\n{tables(profile, unit, width, max_rows, sort_by)}"


def report(  # noqa: PLR0917
    profile: Profile,
    full: bool,
    unit: str,
    width: int,
    max_rows: int | None,
    sort_by: SortBy | None,
    corrected: bool,
    stream: TextIO | None = None,
) -> str:
    """See `Reportable.report`.

    stream: where it will be printed.
    """
    check_flag("full", full)
    check_flag("corrected", corrected)
    max_rows = _check_layout(unit, width, max_rows, sort_by)
    shown = profile.corrected() if corrected else profile
    if not full and (unit != "auto" or max_rows or sort_by):
        return render(shown, unit, width=width, max_rows=max_rows, sort_by=sort_by)
    colour = takes_colour(stream)
    screen = profile_screen(profile, corrected=corrected, width=width, colour=colour)
    if not full or profile.is_empty:
        return screen
    return f"{screen}\n\n{tables(shown, unit, width, max_rows, sort_by)}"


def _check_layout(
    unit: str, width: int, max_rows: int | None, sort_by: SortBy | None
) -> int | None:
    """Raise TypeError or ValueError if one of them is not what it may be. Returns
    `max_rows`."""
    check_unit(unit)
    check_whole("width", width, least=1)
    if sort_by is not None:
        check_choice("sort_by", sort_by, SORT_KEYS)
    return None if max_rows is None else check_whole("max_rows", max_rows, least=1)


def tables(
    profile: Profile,
    unit: str = "auto",
    width: int = 120,
    max_rows: int | None = None,
    sort_by: SortBy | None = None,
) -> str:
    """What `render` has below its header."""
    return "\n\n".join(_sections(profile, unit, width, max_rows, sort_by))


def _sections(
    profile: Profile,
    unit: str,
    width: int,
    max_rows: int | None,
    sort_by: SortBy | None,
) -> Iterator[str]:
    nodes = placed_nodes(profile, sort_by)
    shown = select_nodes(nodes, max_rows or _MODULES_SHOWN, sort_by)
    notes = (wrap(line, width) for line in footnotes(profile, nodes, shown))
    yield "\n".join([time_tree(profile, shown, unit, width), *notes])
    if profile.has_functions:
        order = sort_by or "self"
        yield function_table(profile, unit, width, max_rows, order)
        yield call_site_table(profile, unit, width, max_rows, order)
    if profile.memory:
        yield memory_tree(profile, profile.memory, shown, width)
