"""Work that the program's trackers and modes must not see."""

from __future__ import annotations

import threading
from collections.abc import Callable

from torchprof_hooks.measure.uninterrupted import uninterrupted


def in_own_thread(work: Callable[[], object]) -> bool:
    """Do `work` in a new thread, which neither trackers and modes of other threads nor
    their settings, such as autocast, reach. Returns whether it was done: since Python
    3.12, a program that is ending gets no new threads.

    Interrupts are delayed until the thread is done: a program that ends while torch
    works in another thread aborts.
    """
    # With a name of its own: it takes none of the numbers that the program's have.
    thread = threading.Thread(target=work, name="torchprof_hooks")
    with uninterrupted():
        try:
            thread.start()
        except RuntimeError:
            return False
        thread.join()
    return True
