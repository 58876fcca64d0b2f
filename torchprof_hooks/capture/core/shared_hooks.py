"""One pair of hooks for all cursors: not of the core in Python, where finding out which
of them are meant would take longer than calling each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from torchprof_hooks.capture.core.python import Cursor, Hook

#: What torch is to call before and after each module; None: there is no such pair.
SHARED_HOOKS: Final[tuple[Hook, Hook] | None] = None


def show_modules_to(cursors: tuple[Cursor, ...]) -> None:
    """Has the pair show all module calls to these, in this order."""
