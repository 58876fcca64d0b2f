"""The blocks of code that hooks and profilers are entered for, and their ends."""

from __future__ import annotations

import threading
import weakref
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final

from torchprof_hooks.capture.attach.attachments import attachments

#: What a `with` statement calls at its end.
Exit = Callable[
    [type[BaseException] | None, BaseException | None, TracebackType | None], None
]
#: Is held by a `with` statement until its end (see `ExitMethod`).
Held = weakref.ref[Any]


class ExitMethod:
    """`__exit__` of what can be entered.

    Each time that it is looked up, it is another object. A `with` statement looks it up
    before it enters, and keeps it until it has ended. So a block is over when nobody
    has its `__exit__` any more: also if an interrupt came before the first line of
    that, or after the last one of `__enter__`, when nothing of ours can tell.
    """

    def __init__(self, leave: Callable[..., None]) -> None:
        self._leave = leave

    def __get__(self, instance: object, owner: type | None = None) -> Exit:
        given = () if instance is None else (instance,)  # ExitStack gives it later
        leave = partial(self._leave, *given)
        _looked_up.last = weakref.ref(leave)
        return leave


class _LookedUp(threading.local):
    last: Held | None = None


_looked_up: Final = _LookedUp()


def held_for(manager: object) -> Held | None:
    """What the block that enters `manager` right now holds; None if ``__enter__`` was
    called by something else than a `with` statement or an ``ExitStack``. To be asked
    first of all."""
    held, _looked_up.last = _looked_up.last, None
    given = getattr(held and held(), "args", (None,))
    return held if not given or given[0] is manager else None


class Block:
    """A block of code, from before anything is done for it until all that is undone.

    close: undoes everything; is told whether an exception is the reason. Whatever was
        not done, or is undone already, it leaves alone.
    manager: what was entered, if the block is to keep it alive until `end`. If not,
        something else holds the block, and both die together.
    """

    def __init__(
        self,
        held: Held | None,
        close: Callable[[bool], object],
        manager: object = None,
    ) -> None:
        self.manager = manager
        self._held = held
        self._thread = get_ident()
        self._close = close
        self._is_entered = False
        _blocks.add(self)

    def begin(self, open_all: Callable[[], object]) -> None:
        """Do everything that the block needs."""
        try:
            open_all()
        except BaseException:  # an interrupt: there will be no block
            self.end(by_exception=True)
            raise
        self._is_entered = True

    def end(self, by_exception: bool) -> None:
        """Undo everything that was done for the block."""
        self._is_entered = False
        self._close(by_exception)
        self._thread = _NO_THREAD
        _blocks.discard(self)

    @property
    def has_ended(self) -> bool:
        """Whether everything has been undone."""
        return self._thread == _NO_THREAD

    @property
    def was_interrupted(self) -> bool:
        """Whether the block is over, or never began, without having been ended. To be
        asked where no block is just being begun or ended in this thread."""
        if self.has_ended:
            return False
        if self._held is not None and self._held() is None:
            return True
        return not self._is_entered and self._thread == get_ident()


_NO_THREAD: Final = -1  # is no number of a thread
_blocks: Final[weakref.WeakSet[Block]] = weakref.WeakSet()


def heal() -> None:
    """At the beginning of a use: remove what an earlier, interrupted one has left on
    torch."""
    for block in list(_blocks):
        if block.was_interrupted:
            block.end(by_exception=True)
    attachments.heal()
