"""Runs our own trials, such that no tracker measures them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from torchprof_hooks.capture.attach.engine import engine_patch
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
    following = [(user, user.thread) for user in engine_patch.trackers_here()]
    try:
        for user, _ in following:
            user.thread = _NO_THREAD
        yield
    finally:
        for user, thread in following:
            user.thread = thread
