"""The reports of a profile: as text, as a page, as JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple, TextIO

from torchprof_hooks.documents.build.blocks import MEMORY, Asked, document
from torchprof_hooks.documents.build.exit_report import ExitLayout
from torchprof_hooks.documents.build.memory import failure_of
from torchprof_hooks.documents.build.tables import grouped_table
from torchprof_hooks.documents.build.view import View, view_of
from torchprof_hooks.documents.document import Table
from torchprof_hooks.documents.render.terminal import takes_colour
from torchprof_hooks.documents.render.text import table_lines, text_of
from torchprof_hooks.documents.render.units import check_unit
from torchprof_hooks.documents.words import IN_PYTHON, Hints
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import (
    GROUPINGS,
    SORT_KEYS,
    Grouping,
    SortBy,
    check_grouping,
)
from torchprof_hooks.profiles.options import check_choice, check_flag, check_whole

#: Lines of a screen.
LINES: Final = 40


class Layout(NamedTuple):
    """How a report looks; for the fields see `Reportable.report`."""

    unit: str = "auto"
    width: int = 120
    max_rows: int | None = None
    sort_by: SortBy | None = None

    def checked(self, *, full: bool) -> Layout:
        """The same layout, with sizes as int.

        full: whether the report has tables.

        Raises:
            TypeError, ValueError: a field is not valid, or is for tables, which the
                report does not have.
        """
        check_unit(self.unit)
        width = check_whole("width", self.width, least=1)
        if self.sort_by is not None:
            check_choice("sort_by", self.sort_by, SORT_KEYS)
        max_rows = self.max_rows
        if max_rows is not None:
            max_rows = check_whole("max_rows", max_rows, least=1)
        found = Layout(self.unit, width, max_rows, self.sort_by)
        for name, usual in Layout(width=width)._asdict().items():
            if not full and getattr(found, name) != usual:
                raise ValueError(f"{name} is for the tables of report(full=True)")
        return found


def report(
    profile: ProfileData,
    layout: Layout,
    *,
    full: bool = False,
    stream: TextIO | None = None,
    lines: int = LINES,
    hints: Hints = IN_PYTHON,
    tables_follow: bool = False,
) -> str:
    """See `Reportable.report`.

    stream: where it will be printed.
    lines: the most lines of the screen.
    hints: what the screen names as showing more.
    tables_follow: whether Theano's tables follow, which have tips, and whose memory it
        was when that ran out.
    """
    check_flag("full", full)
    layout = layout.checked(full=full)
    view, colour = view_of(profile, hints), takes_colour(stream)
    if not full or view.shown.is_empty:
        without = ["tips"] * tables_follow
        if tables_follow and failure_of(profile):
            without += ["memory at the failure", "layers"]
        found = document(Asked(view, "screen", without=without))
        return text_of(found, width=layout.width, lines=lines, colour=colour)
    return text_of(
        document(Asked(view, "full", layout.sort_by)),
        width=layout.width,
        colour=colour,
        unit=layout.unit,
        max_rows=layout.max_rows,
    )


def program_text(
    profile: ProfileData,
    layout: ExitLayout | None = None,
    *,
    width: int = 120,
    with_memory: bool = False,
    ignore_first_call: bool = False,
) -> str:
    """The report of a whole program, with Theano's sections, as text.

    with_memory: whether there is a section for memory.
    ignore_first_call: whether the start-up, with the first step, is left out.
    """
    loop, layout = view_of(profile), layout or ExitLayout()
    whole = View(loop.profile, loop.profile, None, loop.unmeasured)
    without = () if with_memory else MEMORY
    asked = Asked(loop, "exit", layout=layout, without=without)
    if not ignore_first_call:
        asked = replace(asked, whole=whole)
    # Times range from microseconds to hours, so each one has its best unit.
    return text_of(document(asked), width=width, unit="auto_foreach")


def rows_report(
    profile: ProfileData,
    by: Grouping,
    *,
    width: int = 120,
    max_rows: int | None = None,
    sort_by: SortBy | None = None,
) -> str:
    """The rows of the measured steps (see `Profile.rows`) as a table, by
    default the most own time first.

    max_rows: 40 by default.

    Raises:
        ValueError: unknown `by` or `sort_by`.
    """
    if sort_by is not None:
        check_choice("sort_by", sort_by, SORT_KEYS)
    table: Table = grouped_table(profile.only_measured, by, sort_by or "self")
    return "\n".join(table_lines(table, width=width, max_rows=max_rows))


def to_markdown(profile: ProfileData, hints: Hints = IN_PYTHON) -> str:
    """See `Reportable.to_markdown`.

    hints: what it names as showing more.
    """
    from torchprof_hooks.documents.render.markdown import markdown_of

    return markdown_of(document(Asked(view_of(profile, hints), "markdown")))


def page(profile: ProfileData) -> str:
    """See `Reportable.to_html`."""
    from torchprof_hooks.documents.render.html import page_of

    return page_of(document(Asked(view_of(profile), "page")))


def to_json(
    profile: ProfileData, by: Grouping | None = None, hints: Hints = IN_PYTHON
) -> str:
    """See `Reportable.to_json`.

    by: what its rows are, as for `Profile.rows`; by default, it has a table for each of
        the usual groupings.

    Raises:
        TypeError, ValueError: unknown `by`.
    """
    from torchprof_hooks.documents.render.json import json_of

    if by is not None:
        check_grouping(by, GROUPINGS)
    return json_of(document(Asked(view_of(profile, hints), "json", by=by)))
