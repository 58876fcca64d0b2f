"""Tells listeners when Python has looked through all objects for garbage."""

from __future__ import annotations

import gc
import sys
from _thread import interrupt_main, start_new_thread
from time import perf_counter_ns
from types import FrameType
from typing import Any, Final, Protocol

from torchprof_hooks.capture.attach.attachments import Attachment
from torchprof_hooks.capture.record.source_location import OUR_FILES

#: The generation of all objects. What younger ones take is short, and the business of
#: whoever makes many objects; the time of a full collection depends on all that the
#: program has.
_FULL: Final = 2


class GarbageListener(Protocol):
    """What can be told of collections."""

    def garbage_collected(self, took_ns: int) -> None:
        """One has ended, in the running thread."""


class GarbageCallback(Attachment):
    """What Python calls around collections; its users are `GarbageListener`s.

    A collection begins wherever an object is made, in whichever phase that happens to
    be. One that we have set off ourselves is a part of what measuring takes, and nobody
    is told.
    """

    def __init__(self) -> None:
        super().__init__()
        self._began_ns = 0  # 0: nobody wants to know

    def put_on(self) -> None:
        """See `Attachment`."""
        if self._around_collections not in gc.callbacks:
            gc.callbacks.append(self._around_collections)

    def take_off(self) -> bool:
        """See `Attachment`."""
        while self._around_collections in gc.callbacks:
            gc.callbacks.remove(self._around_collections)
        return True

    def _around_collections(self, moment: str, about: dict[str, Any]) -> None:
        try:
            if about["generation"] < _FULL:
                return
            now_ns, began_ns = perf_counter_ns(), self._began_ns
            self._began_ns = 0
            if moment == "start":
                self._began_ns = 0 if _is_ours(sys._getframe().f_back) else now_ns
            elif began_ns:
                for user in self.users:
                    user.garbage_collected(now_ns - began_ns)
        except KeyboardInterrupt:
            # Python would print it, and go on. Sent from here, it would be raised here.
            start_new_thread(interrupt_main, ())


def _is_ours(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_code.co_filename.startswith(OUR_FILES)


garbage_callback: Final = GarbageCallback()
