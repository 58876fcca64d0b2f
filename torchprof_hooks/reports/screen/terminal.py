"""What the stream that a report is printed to can show."""

from __future__ import annotations

import os
import shutil
from typing import Final, TextIO

#: Columns where it is not known how many there are, and the most that are used.
WIDTH: Final = 120


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
