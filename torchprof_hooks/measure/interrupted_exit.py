"""Has a program that Ctrl-C has ended exit with the code that it has without us."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from torchprof_hooks.measure.uninterrupted import Delay, uninterrupted

#: When the program ends, this module of torch's makes a table of what compiling took,
#: also if nothing was compiled. It is imported as soon as there is an optimizer.
_MAKES_TABLE: Final = "torch._dynamo.utils"
#: What that imports for it, if it is installed: as our reports do.
_TABLES: Final = "tabulate"


class InterruptedExit:
    """Knows whether Python has forgotten, when it comes to our exit functions, that
    Ctrl-C has ended the program.

    Python ends such a process by the signal. It forgets this, and exits with 1, if it
    runs code given as a string in between, as ``namedtuple`` and ``dataclass`` do. Our
    reports do so, and torch's exit function does, if it is the first to import what it
    makes its table with.
    """

    def __init__(self) -> None:
        self._torch_comes_first = False
        self._is_forgotten: bool | None = None  # None: nobody has asked

    def registered(self) -> None:
        """An exit function of ours has been registered. They run in the reverse order:
        this one before others of ours; and torch's first, unless it was there
        before."""
        self._torch_comes_first = _MAKES_TABLE not in sys.modules

    @contextmanager
    def uninterrupted(self) -> Iterator[Delay]:
        """Around all that an exit function of ours does: signals wait for it, and
        Ctrl-C has nothing left to stop. If Ctrl-C has ended the program, Python will
        end the process by that signal; or, if it had forgotten that, exit with 1."""
        if self._is_forgotten is None:  # once for all of our exit functions
            self._is_forgotten = self._forgets()
        with suppress(KeyboardInterrupt), uninterrupted() as delay:
            yield delay
        ended_by = getattr(sys, "last_type", None)
        is_interactive = hasattr(sys, "ps1")  # there, Ctrl-C was not the end
        if ended_by is KeyboardInterrupt and not is_interactive:
            with suppress(KeyboardInterrupt):
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
