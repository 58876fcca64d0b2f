"""Keeps the exit code of a program that Ctrl-C has ended as it is without us."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from torchprof_hooks.measure.uninterrupted import Delay, uninterrupted

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
