"""Runs our own trials, such that no tracker measures them."""

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
    then do it in this one, where trackers, which may still be read, do not see it."""
    if not in_own_thread(work):
        with without_function_modes(), _not_followed():
            work()


@contextmanager
def _not_followed() -> Iterator[None]:
    here = get_ident()
    following = [*engine_patch.trackers_here(), *function_interception.trackers_here()]
    try:
        for tracker in following:
            tracker.thread = _NO_THREAD
        yield
    finally:
        for tracker in following:
            tracker.thread = here
