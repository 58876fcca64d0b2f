"""Runs trials of our own, which no tracker is to see."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from torchprof_hooks.capture.attach.engine import engine_patch
from torchprof_hooks.capture.attach.function_interception import function_interception
from torchprof_hooks.capture.torch_names.functions import without_function_modes
from torchprof_hooks.measure.uninterrupted import in_own_thread

_NO_THREAD: Final = -1


def do_aside(work: Callable[[], object]) -> None:
    """Do this in a thread of its own. A program that is ending gets no other thread:
    then do it in this one, unseen by the trackers here, which may still be read."""
    if not in_own_thread(work):
        with without_function_modes(), _looked_at_by_nobody():
            work()


@contextmanager
def _looked_at_by_nobody() -> Iterator[None]:
    here = get_ident()
    looking = [*engine_patch.trackers_here(), *function_interception.trackers_here()]
    try:
        for tracker in looking:
            tracker.thread = _NO_THREAD
        yield
    finally:
        for tracker in looking:
            tracker.thread = here
