"""Lines on a terminal, where some characters take two columns and some give orders, and
what the stream that they are printed to can show."""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Final, Literal, NamedTuple, TextIO

#: Columns where it is not known how many there are, and the most that are used.
WIDTH: Final = 120

#: East Asian widths of characters that take two columns: wide, and full width.
_WIDE: Final = ("W", "F")

Style = Literal["", "title", "hot", "blue", "red", "green", "faint"]

#: What tells a terminal to change the look (ECMA-48, "select graphic rendition").
_CODES: Final = {
    "title": "1",  # bold
    "hot": "1;33",  # bold, yellow
    "blue": "34",
    "red": "31",
    "green": "32",
    "faint": "2",
}


class Line(NamedTuple):
    """A line, without its end."""

    text: str
    style: Style = ""


Block = Sequence[Line]


def joined(blocks: Iterable[Block], *, colour: bool) -> str:
    """The blocks that have lines, with an empty line between them."""
    texts = ("\n".join(painted(b) if colour else plain(b)) for b in blocks if b)
    return "\n\n".join(texts)


def plain(lines: Block) -> list[str]:
    """The lines without colours."""
    return [line.text for line in lines]


def painted(lines: Block) -> list[str]:
    """The lines as a terminal shows them in colours."""
    return [
        f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style else text
        for text, style in lines
    ]


def takes_colour(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal that shows colours, and nobody has asked for
    none (https://no-color.org)."""
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return is_wanted and is_terminal(stream)


def width_of(stream: TextIO | None) -> int:
    """Columns for a screen: those of the terminal, if the stream is one, up to 120."""
    if not is_terminal(stream):
        return WIDTH
    return min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal, so that somebody may look at it."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # it is less than a file, or closed
        return False


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


def padded(text: str, width: int, *, to_right: bool = False) -> str:
    """The text, `width` columns wide: with spaces behind it, or before it."""
    spaces = " " * (width - display_width(text))
    return spaces + text if to_right else text + spaces


def wrapped(text: str, width: int, indent: str = "  ", most: int = 0) -> list[str]:
    """The text in lines of at most `width` columns. A number is not parted from its %.

    indent: before all lines but the first.
    most: how many lines; the last one is cut then. 0: as many as it takes.
    """
    text = printable(text).replace(" %", "\0%")
    width = max(width, len(indent) + 1)
    lines = fill(text, width, subsequent_indent=indent, break_on_hyphens=False)
    found = lines.replace("\0%", " %").split("\n")
    if most and len(found) > most:
        rest = " ".join(line.removeprefix(indent) for line in found[most - 1 :])
        found[most - 1 :] = [indent * (most > 1) + rest]
    return [shorten(line, width) for line in found]  # some characters are wide


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1
