"""A progress bar for work that keeps somebody at a terminal waiting."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from threading import RLock
from typing import Any, Final, TypeVar

from torchprof_hooks.documents.render.terminal import is_terminal

T = TypeVar("T")

#: Seconds after which the bar appears.
DELAY_S: Final = 2.0


def with_progress(items: Sequence[T], what: str) -> Iterable[T]:
    """The items; while they are taken, a bar on standard error shows how many are done:
    if that takes long, standard error is a terminal, and tqdm is installed (the extra
    ``progress``)."""
    bar = _new_bar()
    if bar is None:
        return items
    shown: Iterable[T] = bar(items, what, delay=DELAY_S, leave=False, file=sys.stderr)
    return shown


def _new_bar() -> Any:
    """A class of tqdm bars; None without a terminal, or without tqdm."""
    if not is_terminal(sys.stderr):
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None

    class Bar(tqdm):  # type: ignore[type-arg]
        """A bar without a thread of its own, which cannot be started while Python ends,
        and without a lock that processes share."""

        monitor_interval = 0

    Bar.set_lock(RLock())
    return Bar
