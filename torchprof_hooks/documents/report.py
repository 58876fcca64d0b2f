"""The reports of a profile: as text, as a page, as JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple, TextIO

from torchprof_hooks.documents.build.full import full_tables
from torchprof_hooks.documents.build.memory_failure import failure_of, memory_first
from torchprof_hooks.documents.build.page import page_document
from torchprof_hooks.documents.build.screen import screen_document
from torchprof_hooks.documents.build.tables import grouped_table
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.documents.document import Table
from torchprof_hooks.documents.render.terminal import takes_colour
from torchprof_hooks.documents.render.text import table_lines, text_of
from torchprof_hooks.documents.render.units import check_unit
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import SORT_KEYS, Grouping, SortBy
from torchprof_hooks.profiles.options import check_choice, check_flag, check_whole

#: Lines of a screen.
LINES: Final = 40
#: What the screen names as showing more.
_MORE: Final = "report(full=True), to_html(path)"


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
        if not full:
            found._refuse_tables()
        return found

    def _refuse_tables(self) -> None:
        for name, usual in Layout(width=self.width)._asdict().items():
            if getattr(self, name) != usual:
                raise ValueError(f"{name} is for the tables of report(full=True)")


def report(
    profile: ProfileData,
    layout: Layout,
    *,
    full: bool = False,
    stream: TextIO | None = None,
    lines: int = LINES,
    more: str = _MORE,
    tips: bool = True,
) -> str:
    """See `Reportable.report`.

    stream: where it will be printed.
    lines: the most lines of the screen.
    more: what the screen names as showing more.
    tips: whether to show tips; False where a report that has them follows.
    """
    check_flag("full", full)
    layout = layout.checked(full=full)
    view, colour = view_of(profile), takes_colour(stream)
    full = full and not view.shown.is_empty
    document = screen_document(view, "" if full else more)
    if not tips:
        others = [block for block in document.blocks if block.name != "tips"]
        if failure_of(profile):  # what is about memory comes directly after
            others = [b for b in others if b.name in ("answers", "measuring")]
        document = replace(document, blocks=others)
    if not full:
        return text_of(document, width=layout.width, lines=lines, colour=colour)
    tables = full_tables(profile, layout.sort_by, view.of_all)
    first = [block for block in document.blocks if block.name != "hot_functions"]
    return text_of(
        replace(document, blocks=memory_first(profile, [*first, *tables])),
        width=layout.width,
        colour=colour,
        unit=layout.unit,
        max_rows=layout.max_rows,
    )


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


def page(profile: ProfileData) -> str:
    """See `Reportable.to_html`."""
    from torchprof_hooks.documents.render.html import page_of

    return page_of(page_document(profile))


def to_json(profile: ProfileData, by: Grouping | None = None) -> str:
    """See `Reportable.to_json`.

    by: what its rows are, as for `Profile.rows`; by default, it has a table for each of
        the usual groupings.

    Raises:
        TypeError, ValueError: unknown `by`.
    """
    from torchprof_hooks.documents.export.rows import data_document
    from torchprof_hooks.documents.render.json import json_of

    return json_of(data_document(profile, by))
