"""Python's collector of garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch the collector off, in all threads. It would go through all objects of the
    program again and again, which takes as long as making a report, or reading a
    thousand files; these make no cycles. And it would finalize objects of the program
    in whatever thread is running."""
    was_enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_enabled:
            gc.enable()
