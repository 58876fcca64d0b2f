"""What the report of a whole program says that we took."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_LINE: Final = re.compile(
    r"It took (\S+)s to measure, (\S+)s to begin, and (\S+)s to make this report"
)


class Said(NamedTuple):
    """In seconds."""

    measuring: float
    beginning: float
    report: float


def said(report: str) -> Said:
    """What the line below a report tells.

    Raises:
        ValueError: there is none.
    """
    found = _LINE.search(report)
    if found is None:
        raise ValueError(f"no word of what it took in this report:\n{report}")
    return Said(*map(float, found.groups()))
