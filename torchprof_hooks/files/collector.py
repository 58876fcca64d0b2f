"""Switches Python's garbage collector off for a while."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch the garbage collector off, in all threads, for work that makes no cycles.

    The collector would search all objects of the program again and again, which takes
    as long as making a report, or as reading a thousand files. And it would finalize
    objects of the program in whatever thread is running.

    In threads other than the main one, it stays as it is: the program, which goes on
    meanwhile, may switch it itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()
