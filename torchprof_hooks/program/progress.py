"""A bar for work that takes longer than somebody at a terminal waits gladly."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

#: Seconds after which the bar appears.
DELAY_S: Final = 2.0


def with_progress(items: Sequence[T], what: str) -> Iterable[T]:
    """The items, with a bar on standard error that says how many of them are done, if
    they take long, it is a terminal, and tqdm is installed (the extra ``progress``)."""
    try:
        from tqdm import tqdm
    except ImportError:
        return items
    # disable=None: unless it is a terminal.
    return tqdm(items, what, disable=None, delay=DELAY_S, leave=False, file=sys.stderr)
