"""The look of the tables of the text report, on terminals where some characters take
two columns, and some end the line."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from textwrap import fill
from typing import Final, Generic, NamedTuple, TypeVar

from tabulate import tabulate

from torchprof_hooks.reports.units import format_times

R = TypeVar("R")

_NARROWEST_NAME: Final = 12
#: East Asian widths of characters that take two columns: wide, and full width.
_WIDE = ("W", "F")


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column of numbers. It is left out where it would be empty, unless `is_kept`."""

    header: str
    value: Callable[[R], float]
    is_kept: bool = False


class TextColumn(NamedTuple):
    """A column as it is shown.

    is_words: whether it is no column of numbers, which pages align to the left.
    """

    header: str
    texts: list[str]
    is_words: bool = False


class Table(NamedTuple):
    """A table as it is shown.

    labels: what the lines are about; the first is the header of the others.
    """

    labels: list[str]
    columns: list[TextColumn]


def filled_columns(
    columns: Iterable[Column[R]],
    rows: Sequence[R],
    format_all: Callable[[list[float]], list[str]],
) -> list[TextColumn]:
    """The columns that have values, as texts; a value of 0 is left blank.

    format_all: gets the values of all columns at once: they may have a unit in common.
    """
    numbers = [(c, [c.value(row) for row in rows]) for c in columns]
    numbers = [(c, values) for c, values in numbers if any(values) or c.is_kept]
    texts = iter(format_all([value for _, values in numbers for value in values]))
    return [
        TextColumn(
            column.header,
            [text if value else "" for value, text in zip(values, texts, strict=False)],
        )
        for column, values in numbers
    ]


def time_columns(
    columns: Mapping[str, Sequence[float]], unit: str = "auto"
) -> list[TextColumn]:
    """Nanoseconds by headers, in a unit that all have in common; with ``auto_foreach``,
    each in its own."""
    texts = iter(format_times([*chain.from_iterable(columns.values())], unit))
    return [
        TextColumn(header, [next(texts) for _ in times_ns])
        for header, times_ns in columns.items()
    ]


def count_column(header: str, counts: Iterable[int]) -> TextColumn:
    """Whole numbers, 0 left blank."""
    return TextColumn(header, [str(count) if count else "" for count in counts])


def share_column(parts: Iterable[float], whole: float) -> TextColumn:
    """Percentages, without their sign."""
    return TextColumn("%", [f"{100 * part / max(whole, 1):.1f}" for part in parts])


def fit_columns(
    labels: Sequence[str],
    columns: Sequence[TextColumn],
    width: int,
    dispensable: Sequence[tuple[str, ...]],
) -> list[TextColumn]:
    """The columns that fit into `width`: those of `dispensable` are left out one after
    the other until labels have room, or two fifths of the width."""
    widest = max((display_width(printable(label)) for label in labels), default=0)
    needed = min(widest, 2 * width // 5)
    kept = list(columns)
    for headers in dispensable:
        if _room(kept, width) >= needed:
            break
        kept = [column for column in kept if column.header not in headers]
    return kept


def format_table(
    labels: Sequence[str],
    columns: Sequence[TextColumn],
    width: int,
    dispensable: Sequence[tuple[str, ...]] = (),
) -> str:
    """`table_lines` with a line below the headers."""
    header, *rows = table_lines(labels, columns, width, dispensable)
    rule = "-" * max(map(display_width, (header, *rows)))
    return "\n".join([header, rule, *rows])


def table_lines(
    labels: Sequence[str],
    columns: Sequence[TextColumn],
    width: int,
    dispensable: Sequence[tuple[str, ...]] = (),
) -> list[str]:
    """Labels on the left, cut where the table would be wider than `width`, and columns
    aligned to the right; the headers first.

    labels: the first is the header of the others.
    dispensable: columns that may go where there is no room (see `fit_columns`).
    """
    columns = fit_columns(labels, columns, width, dispensable)
    room = max(_room(columns, width), _NARROWEST_NAME)
    names = [shorten(printable(label), room) for label in labels]
    widest = max(map(display_width, names))
    numbers = aligned([[c.header, *c.texts] for c in columns]).split("\n")
    return [
        f"{_pad(name, widest)}  {texts}".rstrip()
        for name, texts in zip(names, numbers, strict=True)
    ]


def aligned(columns: Sequence[Sequence[object]]) -> str:
    """Columns side by side, the texts of each aligned to the right."""
    # Headers are texts like others: tabulate pads real ones by two more spaces.
    return tabulate(
        list(zip(*columns, strict=True)),
        tablefmt="plain",
        colalign=["right"] * len(columns),
        disable_numparse=True,
    )


def wrap(text: str, width: int) -> str:
    """The text in lines of at most `width`. A number is not parted from its %."""
    lines = fill(text.replace(" %", "\0%"), width, subsequent_indent="  ")
    return lines.replace("\0%", " %")


def plural(count: int, noun: str, nouns: str = "") -> str:
    """``1 row``, ``2 rows``; `nouns` is the plural where it is not `noun` with an s."""
    return f"{count} {noun}" if count == 1 else f"{count} {nouns or noun + 's'}"


def percent(part: float, whole: float) -> str:
    """``12.3 %``."""
    return f"{100 * part / whole:.1f} %" if whole else "0.0 %"


def printable(text: str) -> str:
    """The text in one line: a character that is not printable (a line's end, an escape
    that could give orders to a terminal) is written as Python would write it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def display_width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def shorten(text: str, room: int) -> str:
    """The text, or its beginning and ``...``, in at most `room` columns."""
    if display_width(text) <= room:
        return text
    kept, left = "", room - 3
    for character in text:
        left -= _columns(character)
        if left < 0:
            break
        kept += character
    return kept + "..."[: max(room, 0)]


def _pad(text: str, width: int) -> str:
    """The text with spaces behind it, `width` columns wide."""
    return text + " " * (width - display_width(text))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1


def _room(columns: Sequence[TextColumn], width: int) -> int:
    """The width that the columns leave to the labels."""
    return width - sum(2 + max(map(len, (c.header, *c.texts))) for c in columns)
