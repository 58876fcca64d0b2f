"""Lines of a screen, and what the stream that they are printed to can show."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, TextIO

#: Columns where it is not known how many there are, and the most that are used.
WIDTH: Final = 120

Style = Literal["", "title", "hot", "forward", "backward", "faint"]

#: What tells a terminal to change the look (ECMA-48, "select graphic rendition").
_CODES: Final = {
    "title": "1",  # bold
    "hot": "1;33",  # bold, yellow
    "forward": "34",  # blue
    "backward": "31",  # red
    "faint": "2",
}


class Line(NamedTuple):
    """A line, without its end."""

    text: str
    style: Style = ""


Block = Sequence[Line]


def joined(blocks: Iterable[Block], *, colour: bool) -> str:
    """The blocks that have lines, with an empty line between them."""
    texts = (
        "\n".join(_painted(line) if colour else line.text for line in block)
        for block in blocks
        if block
    )
    return "\n\n".join(texts)


def _painted(line: Line) -> str:
    if not line.style:
        return line.text
    return f"\x1b[{_CODES[line.style]}m{line.text}\x1b[0m"


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
