"""Signals that end a program: after Ctrl-C its exit code is what it is without us, and
after SIGTERM the report of a measured program is made."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

from torchprof_hooks.measure.uninterrupted import Delay, meant_handler, uninterrupted

#: The exit function of this module of torch makes a table of the time of compiling,
#: even if nothing was compiled. torch imports it as soon as there is an optimizer.
_MAKES_TABLE: Final = "torch._dynamo.utils"
#: What it imports to make the table, if that is installed. Our reports import it, too.
_TABLES: Final = "tabulate"


class InterruptedExit:
    """Tells whether Python, when it calls our exit functions, has forgotten that Ctrl-C
    has ended the program; and restores what it knew when they are done.

    Python ends such a process by the signal. But it forgets this, and exits with 1, if
    it runs code given as a string meanwhile, as ``namedtuple`` and ``dataclass`` do.
    Our reports do so; and torch's exit function, if it is the first to import what it
    makes its table with.
    """

    def __init__(self) -> None:
        self._torch_comes_first = False
        self._is_forgotten: bool | None = None  # None: not known yet

    def registered(self) -> None:
        """Call this when an exit function of ours was registered. Exit functions run in
        reverse order: torch's before this one, if it is registered later."""
        self._torch_comes_first = _MAKES_TABLE not in sys.modules

    @contextmanager
    def uninterrupted(self) -> Iterator[Delay]:
        """A block for all that an exit function of ours does. Signals wait until its
        end, and Ctrl-C stops nothing any more. If Ctrl-C has ended the program, Python
        afterwards ends the process by that signal; or exits with 1, if it had forgotten
        that before."""
        if self._is_forgotten is None:  # once for all of our exit functions
            self._is_forgotten = self._forgets()
        with suppress(KeyboardInterrupt), uninterrupted() as delay:
            yield delay
        ended_by = getattr(sys, "last_type", None)
        is_interactive = hasattr(sys, "ps1")  # there, Ctrl-C does not end the program
        if ended_by is KeyboardInterrupt and not is_interactive:
            with suppress(KeyboardInterrupt):
                # Running a string sets what Python knows: the last one counts.
                exec("" if self._is_forgotten else "raise KeyboardInterrupt")

    def _forgets(self) -> bool:
        imported = list(sys.modules)  # in the order in which they were imported
        if _MAKES_TABLE not in imported:
            return False
        if not self._torch_comes_first:
            return _TABLES not in imported
        makes_table = imported.index(_MAKES_TABLE)
        return _TABLES in imported[makes_table:]  # else, the program has imported it


interrupted_exit: Final = InterruptedExit()


#: How long the report waits for an import that SIGTERM interrupted; not until it ends,
#: as a program may train while it is imported.
PATIENCE_S: Final = 1.0
_PAUSE_S: Final = 0.01
#: The file name in the code of Python's imports.
_OF_IMPORTS: Final = "<frozen importlib._bootstrap>"


class Sigterm:
    """Makes the report of a program when SIGTERM comes. Then the process dies of the
    signal, as without us.

    is_due: whether there is a report to make.
    """

    def __init__(self, is_due: Callable[[], bool], report: Callable[[], None]) -> None:
        self._is_due = is_due
        self._report = report
        self._until_s: float | None = None  # when patience ends, if it has come

    def install(self) -> None:
        """Handle SIGTERM from now on, unless the program does. Only the main thread can
        set a handler."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and meant_handler(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if meant_handler(number) != self._handle:
            return  # the program's own handler has called this one, and does the rest
        if self._is_due():
            # The report may need the very module that is only half imported.
            if _is_importing(frame) and self._send_later():
                return
            self._report()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    def _send_later(self) -> bool:
        """Have the signal sent again in a moment. Returns False once `PATIENCE_S` has
        passed, or if there is no way to send it."""
        now_s = time.monotonic()
        self._until_s = self._until_s or now_s + PATIENCE_S
        if now_s >= self._until_s:
            return False
        try:
            # Not by `threading`: the interrupted code may have locked a lock of that.
            start_new_thread(_send_again, (os.getpid(),))
        except RuntimeError:  # since Python 3.12, in a program that is ending
            return self._send_by_alarm()
        return True

    def _send_by_alarm(self) -> bool:
        """Have the signal sent again by an alarm, unless the program uses alarms."""
        if not hasattr(signal, "setitimer"):  # as on Windows
            return False
        is_free = meant_handler(signal.SIGALRM) == signal.SIG_DFL
        if not is_free or any(signal.getitimer(signal.ITIMER_REAL)):
            return False
        signal.signal(signal.SIGALRM, self._handle_alarm)
        signal.setitimer(signal.ITIMER_REAL, _PAUSE_S)
        return True

    def _handle_alarm(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        self._handle(signal.SIGTERM, frame)


def _send_again(pid: int) -> None:
    time.sleep(_PAUSE_S)
    os.kill(pid, signal.SIGTERM)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported where the signal came."""
    while frame is not None:
        if frame.f_code.co_filename == _OF_IMPORTS:
            return True
        frame = frame.f_back
    return False
