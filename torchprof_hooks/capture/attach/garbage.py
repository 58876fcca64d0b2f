"""Has Python's full collections of garbage interrupt what trackers measure."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Final

from torchprof_hooks.capture.attach.attachments import Attachment
from torchprof_hooks.capture.core import (
    CORE,
    around_collection,
    interrupt_by_collections,
)


class GarbageCallback(Attachment):
    """Python's callback around collections; its users are trackers.

    A collection begins wherever an object is made, in whichever phase that happens to
    be, maybe in code of ours. Collections of younger objects are short, and rightly on
    the code that makes many objects; the time of a full one depends on all objects that
    the program has.
    """

    def put_on(self) -> None:
        # Before Python 3.12, a collection may begin while torch iterates over its
        # hooks. A callback in Python lets other threads run, and if one of them changes
        # the hooks, torch raises an error. That of the native core lets no thread run.
        is_risky = sys.version_info < (3, 12) and threading.active_count() > 1
        is_heard = around_collection in gc.callbacks
        if not is_heard and not (is_risky and CORE.module is None):
            gc.callbacks.insert(0, around_collection)  # what others do counts, too

    def take_off(self) -> bool:
        while around_collection in gc.callbacks:
            gc.callbacks.remove(around_collection)
        return True

    def users_changed(self) -> None:
        interrupt_by_collections(tuple(self.users))


garbage_callback: Final = GarbageCallback()
