"""What several test files need."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

from torchprof_hooks import LinkCall, LinkHook
from torchprof_hooks.instruments import devices as device_observers
from torchprof_hooks.instruments.memory import instrument as memory_instrument
from torchprof_hooks.instruments.memory.meter import MemoryMeter
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.measure.accelerator import EventClock
from torchprof_hooks.measure.memory_counter import MemoryReading

Result = TypeVar("Result")


def in_thread(work: Callable[[], Result]) -> Result:
    """What `work` returns, or raises, when another thread does it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def in_fork(work: Callable[[], bool]) -> bool:
    """What comes of `work` in a fork of this process, which then ends: in any case."""
    child = os.fork()
    if not child:
        is_right = False
        try:
            signal.alarm(30)
            is_right = work()
        finally:
            os._exit(not is_right)
    return os.waitpid(child, 0)[1] == 0


class MyModel(nn.Module):
    """Two Linears, one after the other; `between` is called between the two."""

    def __init__(self) -> None:
        super().__init__()
        self.l1 = nn.Linear(3, 3)
        self.l2 = nn.Linear(3, 3)
        self.between: Callable[[], object] = int

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        hidden = self.l1(x)
        self.between()
        result: torch.Tensor = self.l2(hidden * scale)
        return result


def inputs() -> torch.Tensor:
    return torch.ones(2, 3)


#: The callbacks of a call of `MyModel`, thread-wide, and of its backward.
FORWARD = [
    "pre MyModel",
    "pre MyModel.l1",
    "post MyModel.l1",
    "pre MyModel.l2",
    "post MyModel.l2",
    "post MyModel",
]
BACKWARD = [
    "backward pre MyModel",
    "backward pre MyModel.l2",
    "backward post MyModel.l2",
    "backward pre MyModel.l1",
    "backward post MyModel.l1",
    "backward post MyModel",
]


class Recorder(LinkHook):
    """Writes down every callback: ``"pre Net.fc"``."""

    name = "Recorder"

    def __init__(self, name: str = "Recorder") -> None:
        self.name = name
        self.events: list[str] = []

    def log(self, event: str) -> None:
        self.events.append(event)

    def note(self, callback: str, args: LinkCall) -> None:
        self.log(f"{callback} {args.path}")

    def added(self, link: nn.Module | None) -> None:
        self.log(f"added {type(link).__name__}")

    def deleted(self, link: nn.Module | None) -> None:
        self.log(f"deleted {type(link).__name__}")

    def forward_preprocess(self, args: LinkCall) -> None:
        self.note("pre", args)

    def forward_postprocess(self, args: LinkCall) -> None:
        self.note("post", args)

    def backward_preprocess(self, args: LinkCall) -> None:
        self.note("backward pre", args)

    def backward_postprocess(self, args: LinkCall) -> None:
        self.note("backward post", args)

    def taken(self) -> list[str]:
        """The events so far, which are forgotten."""
        events, self.events = self.events, []
        return events


class Keeper(Recorder):
    """Keeps what its callbacks were given, too."""

    def __init__(self, name: str = "Keeper") -> None:
        super().__init__(name)
        self.calls: list[LinkCall] = []

    def note(self, callback: str, args: LinkCall) -> None:
        super().note(callback, args)
        self.calls.append(args)


def run_traced(work: Callable[[], object], trace: Callable[..., Any]) -> None:
    """Do it with `trace` in the place of Python's hook for debuggers."""
    before = sys.gettrace()
    # Python 3.12 tells of instructions only if that was set on some frame before.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)


class SteadyMemory:
    """In place of an allocator's counters, of a kind of device that torch knows, and no
    build of torch has: whether a reading is higher than the last one takes another
    way."""

    kind, index, name = "hpu", 0, "hpu:0"

    def check_index(self) -> None: ...

    def read(self) -> MemoryReading:
        return 1, 1, 1, 1


@contextmanager
def timed_by(clock: EventClock | None) -> Iterator[None]:
    """Profilers and hooks that are made inside take device times from `clock`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_observers, "default_device_clock", lambda: clock)
        yield


@contextmanager
def counted_by(counter: Any) -> Iterator[None]:
    """Profilers that are made inside read the memory of `counter`, as far as they read
    any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            memory_instrument, "memory_meter", lambda device: MemoryMeter(counter)
        )
        yield


def close(value: float) -> Any:
    """Sums of some seconds in floating point, added up in another order."""
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def names(hook: Any) -> list[str]:
    """The names in the history of a timer, or of a memory hook."""
    return [name for name, *_ in hook.call_history]


def occurrences(hook: Any) -> dict[str, int]:
    """How often it saw each name."""
    return {name: sums["occurrence"] for name, sums in hook.summary().items()}


def memory_meter_of(tracker: Tracker) -> MemoryMeter:
    """What measures memory for it."""
    [meter] = [each for each in tracker.observers if isinstance(each, MemoryMeter)]
    return meter
