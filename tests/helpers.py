"""What several test files need."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

from tests.profile_of import profile_of
from torchprof_hooks import LinkCall, LinkHook, Profile
from torchprof_hooks.capture.tracking.meters import device as device_meters
from torchprof_hooks.capture.tracking.meters.meters import MemoryMeter
from torchprof_hooks.hooks import measuring
from torchprof_hooks.measure.allocator_counter import Reading
from torchprof_hooks.measure.device_clock import EventClock
from torchprof_hooks.profiles.memory import NO_MEMORY, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.totals import Totals

Result = TypeVar("Result")


def own(
    self_ns: int,
    calls: int = 1,
    device_ns: int = 0,
    memory: MemoryTotals = NO_MEMORY,
) -> Totals:
    """The numbers of a hand-built cell."""
    return Totals(calls=calls, self_ns=self_ns, device_self_ns=device_ns, memory=memory)


def timed(*durations_ns: int) -> Totals:
    """A hand-built cell of calls of these durations, without inner calls."""
    return Totals(
        calls=len(durations_ns),
        self_ns=sum(durations_ns),
        min_ns=min(durations_ns),
        max_ns=max(durations_ns),
        duration_ns=sum(durations_ns),
        squares_ns2=sum(duration**2 for duration in durations_ns),
    )


def hand_built(
    cells: Mapping[tuple[str, Phase], Totals],
    modules: Mapping[str, ModuleInfo | str],
    **facts: Any,
) -> Profile:
    """A profile of cells whose paths are written ``"Net > Net.fc > linear(8x4)"``; a
    module may be given by its class name, and is then placed by its position. Names
    that are not given are functions, which come last. Wall time, if not given, is the
    sum of the cells."""
    paths = {key: tuple(key[0].split(" > ")) for key in cells}
    names = dict.fromkeys((*modules, *(n for path in paths.values() for n in path)))
    infos: dict[str, ModuleInfo] = {}
    for order, name in enumerate(names):
        function = ModuleInfo(name.partition("(")[0], "function", order=order)
        info = modules.get(name, function)
        infos[name] = ModuleInfo(info, order=order) if isinstance(info, str) else info
    return profile_of(
        {(paths[key], key[1]): totals for key, totals in cells.items()},
        infos,
        **{"wall_ns": sum(t.self_ns for t in cells.values()), **facts},
    )


#: The rows of a hand-built profile that are not modules.
NOT_MODULES = {
    "(optimizer) SGD": ModuleInfo(kind="optimizer"),
    "(backward outside modules)": ModuleInfo(kind="backward"),
    "(profiler overhead)": ModuleInfo(kind="profiler"),
    "(outside modules)": ModuleInfo(kind="outside"),
}

#: Net calls a (Linear) and b (Block), which calls b.a (Linear); b is recomputed.
STEP = hand_built(
    {
        ("Net", "forward"): own(10, calls=2),
        ("Net > Net.a", "forward"): own(30, calls=2),
        ("Net > Net.b", "forward"): own(5, calls=2),
        ("Net > Net.b > Net.b.a", "forward"): own(15, calls=4),
        ("Net", "backward"): own(1, calls=2),
        ("Net > Net.a", "backward"): own(40, calls=2),
        ("Net > Net.b > Net.b.a", "backward"): own(20, calls=4),
        ("Net > Net.b", "recompute"): own(6, calls=2),
        ("Net > Net.b > Net.b.a", "recompute"): own(14, calls=4),
        ("(optimizer) SGD", "optimizer"): own(8, calls=2),
        ("(backward outside modules)", "backward"): own(4, calls=2),
        ("(profiler overhead)", "profiler"): own(3, calls=2),
        ("(outside modules)", "outside"): own(12, calls=0),
    },
    {
        "Net": "Net",
        "Net.a": "Linear",
        "Net.b": "Block",
        "Net.b.a": "Linear",
        **NOT_MODULES,
    },
)


#: Two steps of a Net with functions. It calls fc (Linear), relu, and, in a reentrant
#: checkpoint, block (Linear); a tanh between modules is recomputed as well. Loss and
#: dropout, which a checkpoint calls again, are called from outside.
FUNCTIONS = hand_built(
    {
        ("Net", "forward"): own(10, calls=2),
        ("Net > Net.fc", "forward"): own(2, calls=2),
        ("Net > Net.fc > linear(8x4, 4x4)", "forward"): own(20, calls=2),
        ("Net > relu(8x4)", "forward"): own(3, calls=4),
        ("Net > CheckpointFunction(8x4)", "forward"): own(4, calls=2),
        ("Net > CheckpointFunction(8x4) > Net.block", "forward"): own(1, calls=2),
        (
            "Net > CheckpointFunction(8x4) > Net.block > linear(8x4, 4x4)",
            "forward",
        ): own(11, calls=2),
        ("Net > tanh(8x4)", "forward"): own(5, calls=2),
        ("Net > tanh(8x4) > mul(8x4, 8x4)", "forward"): own(6, calls=6),
        ("dropout(8x4)", "forward"): own(9, calls=2),
        ("cross_entropy(8x4, 8)", "forward"): own(7, calls=2),
        ("cross_entropy(8x4, 8)", "backward"): own(8, calls=2),
        ("dropout(8x4)", "recompute"): own(14, calls=2),
        ("Net", "backward"): own(1, calls=2),
        ("Net > tanh(8x4)", "recompute"): own(15, calls=2),
        ("Net > CheckpointFunction(8x4)", "backward"): own(16, calls=2),
        ("Net > CheckpointFunction(8x4) > Net.block", "recompute"): own(2, calls=2),
        (
            "Net > CheckpointFunction(8x4) > Net.block > linear(8x4, 4x4)",
            "recompute",
        ): own(12, calls=2),
        (
            "Net > CheckpointFunction(8x4) > Net.block > linear(8x4, 4x4)",
            "backward",
        ): own(22, calls=2),
        ("Net > Net.fc > linear(8x4, 4x4)", "backward"): own(35, calls=2),
        ("(optimizer) SGD", "optimizer"): own(13, calls=2),
        ("(optimizer) SGD > add_(4x4)", "optimizer"): own(18, calls=4),
        ("(backward outside modules)", "backward"): own(3, calls=2),
        ("(profiler overhead)", "profiler"): own(19, calls=2),
        ("(outside modules)", "outside"): own(17, calls=0),
    },
    {"Net": "Net", "Net.fc": "Linear", "Net.block": "Linear", **NOT_MODULES},
)


def table(text: str) -> str:
    """A table as it stands in a test, without the quotes' line ends."""
    return text.strip("\n")


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

    def read(self) -> Reading:
        return 1, 1, 1, 1


@contextmanager
def timed_by(clock: EventClock | None) -> Iterator[None]:
    """Profilers and hooks that are made inside take device times from `clock`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_meters, "default_device_clock", lambda: clock)
        yield


@contextmanager
def counted_by(counter: Any) -> Iterator[None]:
    """Profilers that are made inside read the memory of `counter`, as far as they read
    any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "memory_meter", lambda device: MemoryMeter(counter))
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
