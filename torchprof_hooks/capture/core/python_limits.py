"""What the native core does alone, or better: how the core in Python gets along."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final


def on_unseen_pass(callback: Callable[[], object] | None) -> None:
    """Has `callback` called when a backward pass begins that nobody has told of: not
    started from Python. The core in Python does not hear of nodes, nor of these."""


def seen_pass_begins() -> int:
    """Somebody has told of the pass that begins in this thread. Returns what
    `seen_pass_ends` is to be given."""
    return 0


def seen_pass_ends(before: int) -> None:
    """It is over."""


#: What is in ``gc.callbacks``.
AroundCollection = Callable[[str, dict[str, Any]], None]

#: The generation of all objects.
_FULL: Final = 2


def around_collections(told: Callable[[int], object]) -> AroundCollection | None:
    """A callback of Python's collector that has `told` called with the nanoseconds that
    a full collection took, at its end.

    None: there can be none. Before Python 3.12, a collection may begin while torch goes
    through its hooks, and in a function of Python's another thread may come in and
    change them: torch raises an error then. The native core has a callback that lets
    nobody in. It tells of collections in the main thread alone before Python 3.12.
    """
    if sys.version_info < (3, 12) and threading.active_count() > 1:
        return None
    began_ns = 0  # before we were there

    def around_collection(moment: str, about: dict[str, Any]) -> None:
        nonlocal began_ns
        if about["generation"] < _FULL:
            return
        if moment == "start":
            began_ns = perf_counter_ns()
        elif began_ns:
            told(perf_counter_ns() - began_ns)

    return around_collection
