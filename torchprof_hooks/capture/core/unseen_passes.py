"""Passes that are not started from Python, for the core in Python: it does not hear of
nodes, and so not of such passes."""

from __future__ import annotations

from collections.abc import Callable


def on_unseen_pass(callback: Callable[[], object] | None) -> None:
    """Has `callback` called when a backward pass begins that nobody has told of: not
    started from Python. The core in Python does not hear of such."""


def seen_pass_begins() -> int:
    """Somebody has told of the pass that begins in this thread. Returns what
    `seen_pass_ends` is to be given."""
    return 0


def seen_pass_ends(before: int) -> None:
    """It is over."""
