"""Work that nobody is to see."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torchprof_hooks.measure.uninterrupted import uninterrupted


def in_own_thread(work: Callable[[], object]) -> bool:
    """Do this in a thread of its own, where neither trackers nor modes of other threads
    look, nor what else they have switched on: autocast, say. Whether it was done: since
    Python 3.12, a program that is ending gets no new threads.

    An interrupt waits for the thread: a program that ends while torch works in one
    aborts.
    """
    thread = threading.Thread(target=work)
    with uninterrupted():
        try:
            thread.start()
        except RuntimeError:
            return False
        thread.join()
    return True
