"""A line of the screen, and how it looks on a terminal with colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

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
