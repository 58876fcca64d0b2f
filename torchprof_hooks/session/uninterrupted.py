"""Lets signals wait for a moment."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

#: Those whose handlers programs are left by: an exception out of one may come between
#: any two lines, and leave a profiler running that nobody knows of. Ctrl-C comes last:
#: it is put back after all others.
_SIGNALS: Final = tuple(
    getattr(signal, name)
    for name in ("SIGALRM", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")
    if hasattr(signal, name)
)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Python's handlers of signals run after the block instead of inside of it. Only
    the main thread runs any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[tuple[int, FrameType | None]] = []
    handlers: dict[int, Any] = {}
    try:
        for number in reversed(_SIGNALS):
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, lambda *arguments: waiting.append(arguments))
        yield
    finally:
        for number in _SIGNALS:
            if number in handlers:
                signal.signal(number, handlers[number])
        for number, frame in waiting:
            handlers[number](number, frame)
