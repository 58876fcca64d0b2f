"""Python's full collections of garbage: they interrupt whatever call happens to make an
object."""

from __future__ import annotations

import gc
import sys
import threading

from torchprof_hooks.kernel.attachments import Attachment, attachments
from torchprof_hooks.kernel.core import (
    CORE,
    around_collection,
    interrupt_by_collections,
)
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.reading import Reading
from torchprof_hooks.profiles.names import GARBAGE_NAME


class GarbageCallback(Attachment):
    """Python's callback around collections; its users are `Garbage`s.

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
        is_there = around_collection in gc.callbacks
        if not is_there and not (is_risky and CORE.module is None):
            gc.callbacks.insert(0, around_collection)  # what others do counts, too

    def take_off(self) -> bool:
        while around_collection in gc.callbacks:
            gc.callbacks.remove(around_collection)
        return True

    def users_changed(self) -> None:
        interrupt_by_collections(tuple(user.reading for user in self.users))


garbage_callback = GarbageCallback()


class Garbage(Observer):
    """Has full collections interrupt calls, while time counts: the core books them."""

    def follow(self, reading: Reading) -> None:
        super().follow(reading)
        reading.garbage = reading.interruption_site(GARBAGE_NAME, "garbage")

    def time_begins(self) -> None:
        attachments.attach(garbage_callback, self)

    def time_ends(self) -> None:
        attachments.detach(garbage_callback, self)

    def given_up(self) -> None:
        attachments.give_up(garbage_callback, self)
