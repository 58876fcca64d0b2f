"""Delays signals for a moment, so that none interrupts a begin, an end, or a thread."""

from __future__ import annotations

import signal
import threading

# Those of `signal` make enums, which takes longer than all the rest of entering a hook.
from _signal import getsignal  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Final

#: Signals whose handlers may end a program. Such a handler can raise between any two
#: lines, and leave a profiler running to which nothing refers.
_SIGNALS: Final = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGALRM", "SIGTERM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)

_Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def uninterrupted() -> Iterator[Delay]:
    """Delay Python's signal handlers until after the block. In threads but the main
    one, this does nothing: Python never runs handlers there."""
    delay = Delay()
    if threading.current_thread() is not threading.main_thread():
        yield delay
        return
    try:
        delay.begin()
        yield delay
    finally:
        delay.end()


def enter_uninterrupted(
    begin: Callable[[], object], undo: Callable[[], object]
) -> None:
    """Do `begin`, for the ``__enter__`` of a context manager. If it raises, or if an
    interrupt comes as this ends, `undo` is done: there will be no block."""
    is_begun = False
    try:
        with uninterrupted():
            is_begun = True
            begin()
            return
    except BaseException:
        if is_begun:
            leave_uninterrupted(undo)
        raise


def leave_uninterrupted(end: Callable[[], object]) -> None:
    """Do `end` once, for ``__exit__``: also if an interrupt comes as this begins, or as
    it ends."""
    is_done = False
    try:
        with uninterrupted():
            is_done = True
            end()
            return
    except BaseException:
        if not is_done:
            with uninterrupted():
                end()
        raise


def in_own_thread(work: Callable[[], object]) -> None:
    """Do `work` in a new thread, where trackers, modes and settings (such as autocast)
    of this thread do not count. It is not done in a program that is ending, which gets
    no new threads since Python 3.12.

    Interrupts are delayed until the thread is done: a program that ends while torch
    works in another thread aborts.
    """
    # With a name: else it would take one of the numbers of the program's threads.
    thread = threading.Thread(target=work, name="torchprof_hooks")
    with uninterrupted(), suppress(RuntimeError):
        thread.start()
        thread.join()


def meant_handler(number: int) -> Any:
    """The program's own handler of a signal, also behind a stand-in that was not
    removed again."""
    handler: Any = getsignal(number)
    while isinstance(handler, _StandIn) and not handler.delay.is_on:
        handler = handler.handler
    return handler


class Delay:
    """Replaces the handlers of a program by stand-ins, which keep signals until the
    end.

    `is_on` switches all stand-ins at once, since an interrupt may come after any line:
    a stand-in that was not removed passes signals on while the delay is off.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.waiting: deque[tuple[_Handler, int, FrameType | None]] = deque()
        self._replaced: list[tuple[int, _Handler]] = []

    def begin(self) -> None:
        for number in _SIGNALS:
            handler = meant_handler(number)
            if callable(handler):
                self._replaced.append((number, handler))
                set_handler(number, _StandIn(handler, self))
        self.is_on = True

    def end(self) -> None:
        self.is_on = False
        try:
            for number, handler in self._replaced:
                set_handler(number, handler)
        finally:
            self._pass_on()

    def has_delayed(self, number: int) -> bool:
        """Whether a signal of this number has come, and is delayed."""
        return any(waiting == number for _, waiting, _ in self.waiting)

    def _pass_on(self) -> None:
        if self.waiting:
            handler, number, frame = self.waiting.popleft()
            try:
                handler(number, frame)
            finally:
                self._pass_on()


class _StandIn:
    """Replaces one handler: keeps its signals while the delay is on."""

    def __init__(self, handler: _Handler, delay: Delay) -> None:
        self.handler = handler
        self.delay = delay

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.delay.is_on:
            self.delay.waiting.append((self.handler, number, frame))
        else:
            self.handler(number, frame)
