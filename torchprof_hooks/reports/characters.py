"""Characters as a terminal shows them: some take two columns, some end the line."""

from __future__ import annotations

import unicodedata

#: Of East Asian characters, those that take two columns: wide, and full width.
_WIDE = ("W", "F")


def printable(text: str) -> str:
    """The text in one line: a character that is no sign (a line's end, an escape that
    could give orders to a terminal) is written as Python would write it."""
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


def pad(text: str, width: int) -> str:
    """The text with spaces behind it, `width` columns wide."""
    return text + " " * (width - display_width(text))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1
