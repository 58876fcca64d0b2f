"""Shares of a whole, in the two ways in which people write them: "2%" and 0.02."""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = re.compile(r"(?P<number>\d+(\.\d*)?|\.\d+)(e-?\d{1,2})? ?(?P<sign>%?)")


def parse_share(written: str | float) -> float:
    """0.02 for "2%", "0.02" and 0.02. A number by itself is a share up to 1, and per
    cent above that: 5 is 5 %, for nobody means 500 % by it. "none", as a limit, is 1:
    all there is.

    Raises:
        ValueError: it is something else. Its message is what it may be, to follow after
            "must be".
    """
    text = str(written).strip().lower()
    if text == "none":
        return 1.0
    found = _NUMBER.fullmatch(text) if text.isascii() else None
    if found is None:
        raise ValueError('a share, "2%" or 0.02')
    number = float(text.rstrip(" %"))
    return number / 100 if found["sign"] or number > 1 else number


def parse_strict_share(written: str) -> float:
    """The same where 1 % and 100 % are both likely: a bare 1 is neither.

    Raises:
        ValueError: as for `parse_share`.
    """
    share = parse_share(written)
    if share == 1 and "%" not in str(written):
        raise ValueError('"1%" or "100%", as 1 may be either')
    return share
