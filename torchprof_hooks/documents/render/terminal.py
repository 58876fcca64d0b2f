"""Lines for a terminal, where some characters take two columns and some are commands;
and what a stream can show."""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from textwrap import fill
from typing import Final, Literal, NamedTuple, TextIO

#: The number of columns where it is not known, and the most that are used.
WIDTH: Final = 120

#: East Asian widths of characters that take two columns: wide, and full width.
_WIDE: Final = ("W", "F")

Style = Literal["", "title", "hot", "blue", "magenta", "cyan", "red", "green", "faint"]

#: The codes of styles (ECMA-48, "select graphic rendition").
_CODES: Final = {
    "title": "1",  # bold
    "hot": "1;33",  # bold, yellow
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "red": "31",
    "green": "32",
    "faint": "2",
}


class Line(NamedTuple):
    """A line, without its end.

    bar: so many columns of a bar behind the text; then the style is that of the bar.
    """

    text: str
    style: Style = ""
    bar: int = 0


Block = Sequence[Line]


def joined(blocks: Iterable[Block], *, colour: bool) -> str:
    """The text of all blocks that have lines, with an empty line between them."""
    return "\n\n".join("\n".join(written(b, colour=colour)) for b in blocks if b)


def written(lines: Block, *, colour: bool = False) -> list[str]:
    """The lines as text. colour: whether with the codes of their colours."""
    if colour:
        return [*map(_painted, lines)]
    return [line.text + "#" * line.bar for line in lines]


def _painted(line: Line) -> str:
    code = _CODES.get(line.style, "")
    if line.bar:
        return f"{line.text}\x1b[{code or 0};7m{' ' * line.bar}\x1b[0m"
    return f"\x1b[{code}m{line.text}\x1b[0m" if code else line.text


def takes_colour(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal that shows colours, and the environment has no
    ``NO_COLOR`` (https://no-color.org)."""
    is_wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return is_wanted and is_terminal(stream)


def width_of(stream: TextIO | None) -> int:
    """The width of a screen: the terminal's, up to 120; 120 if the stream is none."""
    if not is_terminal(stream):
        return WIDTH
    return min(shutil.get_terminal_size((WIDTH, 24)).columns, WIDTH)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal, which somebody may watch."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError):  # not a whole file object, or closed
        return False


def printable(text: str) -> str:
    """The text in one line. A character that is not printable (a line end, an escape
    that a terminal would obey) becomes Python's escape for it."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def display_width(text: str) -> int:
    """How many columns of a terminal the text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def shorten(text: str, room: int) -> str:
    """The text; if it takes more than `room` columns, its beginning and ``...``."""
    if display_width(text) <= room:
        return text
    kept, left = "", room - 3
    for character in text:
        left -= _columns(character)
        if left < 0:
            break
        kept += character
    return kept + "..."[: max(room, 0)]


def shorten_name(text: str, room: int) -> str:
    """As `shorten`, but a qualified name that has no room, beside what it calls without
    its shapes, loses its beginning: ``...layers.*.attention: linear(8x...``."""
    name, colon, called = text.partition(": ")
    least = f"{colon}{called}".partition("(")[0]
    least += "(..." * (least != f"{colon}{called}")
    end = name
    while display_width(end + least) > room and " " not in name:
        _, dot, inner = end.removeprefix("...").partition(".")
        if not dot:
            break
        end = f"...{inner}"
    return shorten(f"{end}{colon}{called}", room)


def shorten_phrases(text: str, room: int) -> str:
    """As `shorten`, but only whole phrases are kept: what is between commas or
    semicolons that are in no brackets."""
    if display_width(text) <= room:
        return text
    depth = end = 0
    for place, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        is_end = depth == 0 and character in ",;"
        if is_end and display_width(f"{text[:place]}, ...") <= room:
            end = place
    return f"{text[:end]}, ..." if end else shorten(text, room)


def padded(text: str, width: int, *, to_right: bool = False) -> str:
    """The text with spaces behind it (`to_right`: before it), `width` columns wide."""
    spaces = " " * (width - display_width(text))
    return spaces + text if to_right else text + spaces


def wrapped(text: str, width: int, indent: str = "  ", most: int = 0) -> list[str]:
    """The text in lines of at most `width` columns. No line breaks between a number and
    its %.

    indent: the indent of all lines but the first.
    most: the most lines: if the text is longer, the last one is cut. 0: no limit.
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
