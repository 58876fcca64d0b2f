"""A table as lines of text, with the rows and columns that there is room for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import ceil
from typing import Final, NamedTuple

from torchprof_hooks.documents.document import Column, Table, Tone, Value
from torchprof_hooks.documents.render.terminal import (
    Line,
    Style,
    display_width,
    padded,
    printable,
    shorten,
    shorten_name,
    wrapped,
)
from torchprof_hooks.documents.render.units import (
    best_byte_format,
    best_count_format,
    format_times,
)
from torchprof_hooks.documents.words import percent
from torchprof_hooks.profiles.phases import PHASES

#: Characters of the longest bar.
_LONGEST_BAR: Final = 40
_NARROWEST_LABEL: Final = 12
#: Marks behind rows.
_MARKS: Final[Mapping[Tone, str]] = {"hot": "  <- hottest", "slow": "  <- slow"}
_STYLES: Final[Mapping[Tone, Style]] = {
    "hot": "hot",
    "slow": "red",
    "slower1": "red",
    "slower2": "red",
    "faster1": "green",
    "faster2": "green",
}
#: Colours of bars, by the titles of phases.
_PHASES: Final[Mapping[str, Style]] = {
    info.title: info.colour for info in PHASES.values() if info.colour
}
#: "1 " and a plural up to its "s", as in "1 more rows".
_PLURAL: Final = re.compile(r"^1 (.*?)s\b")


class Sheet(NamedTuple):
    """The size of a text.

    width: characters in a line.
    unit: the unit of times (see `format_times`).
    max_rows: the most rows of each table; None: the table's own number.
    is_screen: whether lines are few, so that none is for the looks only.
    """

    width: int = 120
    unit: str = "auto"
    max_rows: int | None = None
    is_screen: bool = False


class Texts(NamedTuple):
    """A column as texts, the header first."""

    column: Column
    texts: list[str]

    @property
    def width(self) -> int:
        """Characters of the widest."""
        return max(map(display_width, self.texts))

    @property
    def is_number(self) -> bool:
        """Whether it is aligned to the right."""
        return self.column.unit != "text"


def lines_of(table: Table, sheet: Sheet, rows: int | None = None) -> list[Line]:
    """The lines of a table; none if it has no rows.

    rows: how many rows there is room for.
    """
    if not table.labels:
        return []
    shown = chosen_rows(table, _most(table, sheet, rows))
    tones = [table.tones[n] if table.tones else "" for n in shown]
    marks = [_MARKS.get(tone, "") for tone in tones]
    labels = [table.corner, *_labels(table, shown)]
    columns = filled(table, shown, sheet.unit)
    room = sheet.width - max(map(len, marks))
    fitting = _fitting(labels, columns, room)
    texts = _side_by_side(labels, fitting, room, bool(table.depths))
    bars = _bars(table, fitting, shown)
    lines = list(_title(table, sheet))
    lines.append(Line(texts[0], "title"))
    if table.title and not sheet.is_screen:
        lines.append(Line("-" * max(map(display_width, texts))))
    rows_shown = zip(shown, texts[1:], bars, marks, tones, strict=True)
    for n, text, bar, mark, tone in rows_shown:
        if bar:
            room = max(sheet.width - len(text) - 2, 0)
            style = _PHASES.get(table.labels[n], "")
            lines.append(Line(f"{text}  ", style, min(bar, room)))
        else:
            lines.append(Line(f"{text}{mark}", _STYLES.get(tone, "")))
    missing = [c.column.title for c in columns if c not in fitting]
    lines += _below(table, shown, missing, sheet)
    return lines


def _most(table: Table, sheet: Sheet, rows: int | None) -> int:
    most = table.most or len(table.labels)
    if sheet.max_rows is not None and table.drawing != "bars":
        most = sheet.max_rows
    return max(most if rows is None else min(rows, most), 1)


def _title(table: Table, sheet: Sheet) -> Iterator[Line]:
    if table.title:
        lines = wrapped(table.title, sheet.width, most=int(sheet.is_screen))
        yield from (Line(line, "title") for line in lines)


def _below(
    table: Table, shown: Sequence[int], missing: Sequence[str], sheet: Sheet
) -> Iterator[Line]:
    """The lines below a table: what is left out of it, and the notes."""
    count = len(table.labels) - len(shown)
    if count and table.left_out:
        share = percent(
            sum(table.shares) - sum(table.shares[n] for n in shown)
            if table.shares
            else 0.0
        )
        text = table.left_out.format(count=count, share=share)
        yield Line("... " + _PLURAL.sub(r"1 \1", text))
    notes = list(table.notes)
    if missing and not sheet.is_screen:
        notes.append(f"(no room for {', '.join(dict.fromkeys(missing))})")
    for note in notes:
        yield from map(Line, wrapped(note, sheet.width, most=int(sheet.is_screen)))


def chosen_rows(table: Table, most: int) -> list[int]:
    """The positions of at most `most` rows: the most important ones; in a tree,
    with the rows around them. Of equal ones, all are chosen or none, unless
    that would leave no row at all."""
    count = len(table.labels)
    if count <= most or not table.importance:
        return list(range(min(count, most)))
    parents = _parents(table.depths or [0] * count)
    ranked = sorted(range(count), key=table.importance.__getitem__)
    shown: set[int] = set()
    for _, alike in groupby(ranked, key=table.importance.__getitem__):
        more = _with_outer(alike, parents, shown)
        if shown and len(shown) + len(more) > most:
            break
        shown.update(more[:most])
    return sorted(shown)


def _with_outer(
    rows: Iterable[int], parents: Sequence[int], known: set[int]
) -> list[int]:
    """The rows and those around them, the innermost first, without known ones."""
    found: dict[int, None] = {}
    for n in rows:
        around = n
        while around >= 0 and around not in known and around not in found:
            found[around] = None
            around = parents[around]
    return list(found)


def _parents(depths: Sequence[int]) -> list[int]:
    """The position of the row around each row, -1 for the outermost."""
    last_at: dict[int, int] = {}  # by depth
    parents = []
    for position, depth in enumerate(depths):
        parents.append(last_at.get(depth - 1, -1))
        last_at[depth] = position
    return parents


def _labels(table: Table, shown: Sequence[int]) -> Iterator[str]:
    """The labels of the shown rows. In a tree, a label is indented once for each shown
    row around it."""
    if not table.depths:
        yield from (table.labels[n] for n in shown)
        return
    parents, depths = _parents(table.depths), dict[int, int]()
    for n in shown:
        around = parents[n]
        depths[n] = depths[around] + 1 if around in depths else 0
        is_cut = around >= 0 and around not in depths
        name = table.names[n] if is_cut and table.names else table.labels[n]
        yield "  " * depths[n] + name


def filled(table: Table, shown: Sequence[int], unit: str) -> list[Texts]:
    """The columns for texts that are not blank. With a common unit, all times of the
    table have it; bytes never have one, as they differ by more than times."""
    columns = [column for column in table.columns if not column.is_detail]
    cells = [[_cell(column, column.values[n]) for n in shown] for column in columns]
    times = [
        value
        for column, values in zip(columns, cells, strict=True)
        for value in values * (column.unit == "ns")
        if isinstance(value, (int, float))
    ]
    written = iter(format_times(times, unit))
    found = []
    for column, values in zip(columns, cells, strict=True):
        texts = [
            ""
            if v is None
            else next(written)
            if column.unit == "ns"
            else _text(column, v)
            for v in values
        ]
        if any(texts):
            found.append(Texts(column, [column.title, *texts]))
    return found


def _cell(column: Column, value: Value) -> Value:
    return None if value == 0 and not column.shows_zeros else value


def _text(column: Column, value: float | str) -> str:
    if isinstance(value, str):
        return printable(value)
    if column.unit == "bytes":
        return best_byte_format(round(value))
    if column.unit == "flops":
        return best_count_format(value)
    if column.unit == "share":
        sign = "" if "%" in column.title else " %"
        return f"{round(100 * value, 1) + 0.0:.1f}{sign}"
    return str(round(value)) if column.unit == "count" else f"{value:.2f}"


def _fitting(
    labels: Sequence[str], columns: Sequence[Texts], width: int
) -> list[Texts]:
    """The columns that fit into `width`: they are left out, in their `drop_order`,
    until the labels have enough room, or a third of the width."""
    widest = max(display_width(printable(label)) for label in labels)
    needed = min(widest, width // 3)
    kept = list(columns)
    for number in sorted({c.column.drop_order for c in columns} - {0}):
        if width - sum(2 + c.width for c in kept) >= needed:
            break
        kept = [c for c in kept if c.column.drop_order != number]
    return kept


def _side_by_side(
    labels: Sequence[str], columns: Sequence[Texts], width: int, is_tree: bool
) -> list[str]:
    """The lines of a table: labels on the left, cut where it would be wider than
    `width` (whole names at their beginnings; those in a tree are short); then columns,
    with numbers aligned to the right and words to the left."""
    cut = shorten if is_tree else shorten_name
    room = max(width - sum(2 + c.width for c in columns), _NARROWEST_LABEL)
    names = [cut(printable(label), room) for label in labels]
    widest = max(map(display_width, names))
    lines = [padded(name, widest) for name in names]
    for each in columns:
        widest, is_number = each.width, each.is_number
        lines = [
            f"{line}  {padded(text, widest, to_right=is_number)}"
            for line, text in zip(lines, each.texts, strict=True)
        ]
    return [line.rstrip() for line in lines]


def _bars(table: Table, columns: Sequence[Texts], shown: Sequence[int]) -> list[int]:
    """The length of a bar for each row, by its first time; 0 if there are no bars."""
    times = (c.column.values for c in columns if c.column.unit == "ns")
    found = next(times, None) if table.drawing == "bars" else None
    if found is None:
        return [0] * len(shown)
    numbers = [n if isinstance(n := found[row], (int, float)) else 0 for row in shown]
    longest = max(*numbers, 1)
    return [ceil(_LONGEST_BAR * number / longest) for number in numbers]
