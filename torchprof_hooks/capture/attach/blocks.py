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
#: A weak reference to an object that a `with` statement keeps until its end (see
#: `ExitMethod`).
Held = weakref.ref[Any]


class ExitMethod:
    """`__exit__` of a context manager.

    Each lookup returns another object. A `with` statement looks it up before it enters,
    and keeps it until it has ended. So a block is over when nobody has its `__exit__`
    any more. This tells even if an interrupt came after the last line of `__enter__`,
    or before the first one of `__exit__`, where none of our code can notice it.
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
    """The reference by which we know when the block ends that enters `manager` right
    now; None if not a `with` statement or an ``ExitStack`` calls ``__enter__``. To be
    called first in there."""
    held, _looked_up.last = _looked_up.last, None
    given = getattr(held and held(), "args", (None,))
    return held if not given or given[0] is manager else None


class Block:
    """A block of code, from before anything is done for it until all that is undone.

    close: undoes everything; is told whether an exception is the reason. It must leave
        alone what was not done, or is undone already.
    manager: what was entered, if the block is to keep it alive until `end`. If not,
        something else refers to the block, and both die together.
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
        """Whether the block is over, or never began, and `end` was not called. Not to
        be asked while a block is being begun or ended in this thread."""
        if self.has_ended:
            return False
        if self._held is not None and self._held() is None:
            return True
        return not self._is_entered and self._thread == get_ident()


_NO_THREAD: Final = -1  # is no number of a thread
_blocks: Final[weakref.WeakSet[Block]] = weakref.WeakSet()


def retry_cleanup() -> None:
    """Remove what earlier, interrupted uses have left on torch. To be called at the
    beginning of a use."""
    for block in list(_blocks):
        if block.was_interrupted:
            block.end(by_exception=True)
    attachments.retry_cleanup()
