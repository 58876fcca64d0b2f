"""Work in threads of its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from torchprof_hooks.measure.uninterrupted import in_own_thread


@pytest.fixture
def ctrl_c_interrupts() -> Iterator[None]:
    """Also where tests run in the background: there, Ctrl-C is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_it_takes_no_number_from_the_programs_threads() -> None:
    def number() -> int:
        return int(threading.Thread(target=print).name.split()[0].split("-")[1])

    before = number()
    assert in_own_thread(lambda: None)
    assert number() == before + 1


@pytest.mark.usefixtures("ctrl_c_interrupts")
def test_an_interrupt_waits_for_the_thread() -> None:
    done = []

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        done.append("work")

    with pytest.raises(KeyboardInterrupt):
        in_own_thread(work)
    assert done == ["work"]
