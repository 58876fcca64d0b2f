"""Signals wait while a profiler starts or stops, and none is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from torchprof_hooks.measure import uninterrupted as module
from torchprof_hooks.measure.uninterrupted import in_own_thread, uninterrupted

NUMBERS = [
    getattr(signal, f"SIG{name}") for name in ["INT", "ALRM", "TERM", "USR1", "USR2"]
]


class Interrupt(BaseException): ...


class Program:
    """Has a handler for each signal."""

    def __init__(self) -> None:
        self.handled: list[int] = []
        self.interrupts: set[int] = set()  # by which signals it is left
        self.handlers = {number: self._handler() for number in NUMBERS}
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def has_its_handlers(self) -> bool:
        return all(
            signal.getsignal(number) is handler
            for number, handler in self.handlers.items()
        )

    def _handler(self) -> Any:
        def handle(number: int, frame: object) -> None:
            self.handled.append(number)
            if number in self.interrupts:
                raise Interrupt

        return handle


@pytest.fixture
def program() -> Iterator[Program]:
    before = [(number, signal.getsignal(number)) for number in NUMBERS]
    yield Program()
    for number, handler in before:
        signal.signal(number, handler)


def test_a_signal_waits_for_the_end_of_the_outermost_block(program: Program) -> None:
    with uninterrupted():
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
        assert program.handled == []
    assert program.handled == [signal.SIGTERM]
    assert program.has_its_handlers()


def raise_one_by_one(numbers: list[signal.Signals]) -> None:
    """Python runs handlers between its instructions."""
    for number in numbers:
        signal.raise_signal(number)


def test_signals_that_waited_behind_one_that_interrupts(program: Program) -> None:
    program.interrupts.add(signal.SIGALRM)
    arriving = [signal.SIGALRM, signal.SIGTERM, signal.SIGALRM]
    with pytest.raises(Interrupt), uninterrupted():
        raise_one_by_one(arriving)
    assert program.handled == arriving
    assert program.has_its_handlers()


@pytest.mark.parametrize("line", range(10))
def test_an_interrupt_between_any_two_replacements(
    line: int, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of five handlers is replaced twice; the signal comes after one of them."""
    program.interrupts.add(signal.SIGALRM)
    replace = signal.signal
    replacements = 0

    def replace_and_raise(number: int, handler: Any) -> Any:
        nonlocal replacements
        replaced = replace(number, handler)
        replacements += 1
        if replacements == line + 1:
            signal.raise_signal(signal.SIGALRM)
        return replaced

    with monkeypatch.context() as patch:
        patch.setattr(module, "set_handler", replace_and_raise)
        with pytest.raises(Interrupt), uninterrupted():
            pass
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGINT)
    assert program.handled == [signal.SIGALRM, signal.SIGTERM, signal.SIGINT]
    with uninterrupted():
        pass
    assert program.has_its_handlers()


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
