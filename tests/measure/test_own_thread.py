"""Work in threads of its own."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from torchprof_hooks.measure.uninterrupted import in_own_thread


def test_it_takes_no_number_from_the_programs_threads() -> None:
    def number() -> int:
        return int(threading.Thread(target=print).name.split()[0].split("-")[1])

    before = number()
    assert in_own_thread(lambda: None)
    assert number() == before + 1


def test_an_interrupt_waits_for_the_thread() -> None:
    done: list[str] = []
    interrupted = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        interrupted.wait(0.1)  # in vain
        done.append("work")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            in_own_thread(work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["work"]
