"""Time that only a test moves: what is booked can then be asserted exactly."""

from __future__ import annotations

import gc
import importlib
import pkgutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from time import perf_counter_ns
from types import ModuleType
from typing import Any, ClassVar

import pytest

import torchprof_hooks
from torchprof_hooks.kernel import overhead
from torchprof_hooks.kernel.core import CORE

MS = 1_000_000


def leave_old_objects_alone() -> None:
    """From now on, Python looks through all objects only where it is told to: that is a
    row of its own, which would come and go."""
    young, older, _ = gc.get_threshold()
    gc.set_threshold(young, older, 1 << 30)


class FakeClock:
    """Stands in for ``time.perf_counter_ns``; planted work moves it, nothing else.

    All threads read the same time, as they do that of the host.

    cost_per_reading_ns: what reading it takes: then measuring costs something, too.
    """

    def __init__(self, cost_per_reading_ns: int = 0) -> None:
        self.now_ns = 1_000 * MS
        self.cost_per_reading_ns = cost_per_reading_ns
        self._lock = threading.Lock()

    def __call__(self) -> int:
        return self._pass(self.cost_per_reading_ns)

    def advance(self, milliseconds: float) -> int:
        """Let time pass; how many nanoseconds."""
        passed_ns = round(milliseconds * MS)
        self._pass(passed_ns)
        return passed_ns

    def _pass(self, passed_ns: int) -> int:
        """The time at which they began to pass."""
        with self._lock:
            began_ns = self.now_ns
            self.now_ns += passed_ns
        return began_ns


_clocks: list[FakeClock] = []


def burn(milliseconds: float) -> int:
    """Work that takes so long by the clock of the test; how many nanoseconds."""
    assert _clocks, "the test needs the fixture `clock`"
    return _clocks[-1].advance(milliseconds)


@contextmanager
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    """A clock that the whole package reads, and planted work moves."""
    clock = FakeClock()
    _clocks.append(clock)
    install(clock, monkeypatch)
    monkeypatch.setattr(overhead, "call_ns", Trials(clock, overhead.call_ns))
    yield clock
    _clocks.remove(clock)
    if CORE.module is not None:
        CORE.module.set_clock(None)


class Trials:
    """What a call costs on clocks like this one: tried once in a process for each price
    of a reading, and kept apart from what it costs really."""

    known: ClassVar[dict[int, float]] = {}

    def __init__(self, clock: FakeClock, original: Any) -> None:
        self.original = original
        self._clock = clock

    def __call__(self) -> float:
        key = self._clock.cost_per_reading_ns
        if key not in self.known:
            self.known[key] = self.original.__wrapped__()
        return self.known[key]


def install(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the whole package read `clock`."""
    if CORE.module is not None:
        CORE.module.set_clock(clock)
    for module in _modules():
        if vars(module).get("perf_counter_ns") is perf_counter_ns:
            monkeypatch.setattr(module, "perf_counter_ns", clock)


#: They import trainers, for seconds, and read no clock.
OF_TRAINERS = {
    f"torchprof_hooks.integrations.{name}" for name in ("lightning", "transformers")
}


@cache
def _import_all() -> None:
    """Also what would be imported later."""
    for found in pkgutil.walk_packages(torchprof_hooks.__path__, "torchprof_hooks."):
        if not found.name.endswith("__main__") and found.name not in OF_TRAINERS:
            importlib.import_module(found.name)


def _modules() -> Iterator[ModuleType]:
    """All of the package."""
    _import_all()
    for name, module in list(sys.modules.items()):
        if name.startswith("torchprof_hooks."):
            yield module
