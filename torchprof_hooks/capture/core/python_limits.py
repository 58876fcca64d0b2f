"""Substitutes, in the core in Python, for what only the native core can do well."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final


def on_unseen_pass(callback: Callable[[], object] | None) -> None:
    """Have `callback` called when a backward pass begins that was not started from
    Python. Only the native core can: the engine tells it of nodes."""


def seen_pass_begins() -> int:
    """The pass that begins in this thread was started from Python, so it is no unseen
    one. Returns what `seen_pass_ends` is to be given."""
    return 0


def seen_pass_ends(before: int) -> None:
    """The pass that `seen_pass_begins` was called for is over."""


#: The type of a callback in ``gc.callbacks``.
AroundCollection = Callable[[str, dict[str, Any]], None]

#: The generation that a collection of all objects reports.
_FULL: Final = 2


def around_collections(told: Callable[[int], object]) -> AroundCollection | None:
    """A callback for ``gc.callbacks`` that calls `told` at the end of each full
    collection, with the nanoseconds that it took.

    None with several threads before Python 3.12: a collection may begin there while
    torch iterates over its hooks, and a callback in Python lets other threads run. If
    one of them changes the hooks, torch raises an error. The native core's callback
    lets no thread run; it tells of collections in the main thread alone there.
    """
    if sys.version_info < (3, 12) and threading.active_count() > 1:
        return None
    began_ns = 0  # no begin was seen yet

    def around_collection(moment: str, about: dict[str, Any]) -> None:
        nonlocal began_ns
        if about["generation"] < _FULL:
            return
        if moment == "start":
            began_ns = perf_counter_ns()
        elif began_ns:
            told(perf_counter_ns() - began_ns)

    return around_collection
