"""Tells listeners when Python has looked through all objects for garbage."""

from __future__ import annotations

import gc
import sys
from _thread import interrupt_main, start_new_thread
from collections.abc import Callable
from typing import Final

from torchprof_hooks.capture.attach.attachments import Attachment
from torchprof_hooks.capture.core import AroundCollection, around_collections


class GarbageCallback(Attachment):
    """Python's callback around collections. It calls ``garbage_collected`` of its users
    with the nanoseconds of each full collection that ends in the running thread.

    A collection begins wherever an object is made, in whichever phase that happens to
    be, maybe in code of ours. Collections of younger objects are short, and rightly on
    the code that makes many objects; the time of a full one depends on all objects that
    the program has.
    """

    def __init__(self) -> None:
        super().__init__()
        self._callback: AroundCollection | None = None

    def put_on(self) -> None:
        if self._callback not in gc.callbacks:
            self._callback = around_collections(self._collected)
            if self._callback is not None:
                gc.callbacks.append(self._callback)

    def take_off(self) -> bool:
        while self._callback is not None and self._callback in gc.callbacks:
            gc.callbacks.remove(self._callback)
        return True

    def _collected(
        self, took_ns: int, is_ending: Callable[[], bool] = sys.is_finalizing
    ) -> None:
        if is_ending():  # modules are empty by now, `sys` among them
            return
        try:
            for user in self.users:
                user.garbage_collected(took_ns)
        except KeyboardInterrupt:
            # Python would print this exception, and go on. So interrupt again, but from
            # another thread: from this one, the interrupt would be raised here.
            start_new_thread(interrupt_main, ())


garbage_callback: Final = GarbageCallback()
