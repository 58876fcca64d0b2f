"""What the ready-made hooks that measure calls of functions have in common."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from torchprof_hooks.function_hook import FunctionHook
from torchprof_hooks.instruments.functions.call import FunctionCall
from torchprof_hooks.kernel.torch_names.autograd import current_graph_task
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.options import check_whole

#: How many names have sums of their own, as a program may make new ones forever; and
#: the name of the rest.
NAMES_KEPT: Final = 4096
OTHER_FUNCTIONS: Final = "(other functions)"

#: What is read at the begin and at the end of a call, in nanoseconds or bytes; and what
#: a call has taken of these.
Numbers = tuple[int, ...]


@dataclass(eq=False, slots=True)
class OpenCall:
    """A call that is open.

    around: the open call that it is a part of. depth: how many there are around it.
    start: what was read when it began.
    highest: where the last of these numbers was at most since.
    inner: what the calls inside of it took.
    """

    name: str
    phase: Phase
    around: OpenCall | None
    depth: int
    start: Numbers
    inner: Numbers
    highest: int
    is_over: bool = False


@dataclass(slots=True)
class Sums:
    """Of the calls of one name: how many there were, and what they took: by phase;
    those in no other call (`outermost`); the calls inside of them (`inner`).

    peak: the highest rise of the last number within one of them.
    """

    outermost: Numbers
    inner: Numbers
    calls: int = 0
    peak: int = 0
    by_phase: dict[Phase, Numbers] = field(default_factory=dict)

    def total(self, index: int) -> int:
        """Of all phases."""
        return sum(numbers[index] for numbers in self.by_phase.values())

    def add(self, one: OpenCall, taken: Numbers) -> None:
        """Add a call that has ended."""
        self.calls += 1
        self.peak = max(self.peak, one.highest - one.start[-1])
        before = self.by_phase.get(one.phase)
        self.by_phase[one.phase] = taken if before is None else _sum(before, taken)
        self.inner = _sum(self.inner, one.inner)
        if one.around is None:
            self.outermost = _sum(self.outermost, taken)


def _sum(numbers: Numbers, more: Numbers) -> Numbers:
    return tuple(a + b for a, b in zip(numbers, more, strict=True))


class _OfThread(threading.local):
    """open: innermost last, also those that are over. meter: what a hook reads."""

    def __init__(self) -> None:
        self.open: list[OpenCall] = []
        self.meter: Any = None


class _Records:
    """history: (name, what it took, depth) of the newest calls, in the order in which
    they ended. open: by the id of the `FunctionCall`."""

    def __init__(self, history_size: int) -> None:
        self.history: deque[tuple[str, Numbers, int]] = deque(maxlen=history_size)
        self.sums: dict[str, Sums] = {}
        self.open: dict[int, OpenCall] = {}
        self.here = _OfThread()
        self.lock = threading.Lock()  # threads of one hook have one history


class MeasuredCalls(FunctionHook):
    """A hook that reads numbers at the begin and at the end of calls, and adds up, by
    name, how far they rose.

    history_size: how many calls `call_history` keeps.
    """

    _name_header = "FunctionName"

    def __init__(self, history_size: int) -> None:
        self._history_size = check_whole("history_size", history_size, least=0)

    @cached_property
    def _records(self) -> _Records:
        return _Records(self._history_size)

    def _name(self, call: FunctionCall) -> str:
        """The name of the row that the call belongs to."""
        return call.name

    def _read(self, innermost: OpenCall | None) -> Numbers:
        """Read the numbers. innermost: the open call that runs."""
        raise NotImplementedError

    def _begins(self, function: FunctionCall, is_backward: bool = False) -> None:
        phase: Phase = "backward" if is_backward else "forward"
        if not is_backward and current_graph_task() != -1:
            phase = "recompute"
        records, open_here = self._records, self._records.here.open
        name = self._name(function)
        if len(records.sums) >= NAMES_KEPT and name not in records.sums:
            name = OTHER_FUNCTIONS
        while open_here and open_here[-1].is_over:
            open_here.pop()
        around = open_here[-1] if open_here else None
        depth, start = 0 if around is None else around.depth + 1, self._read(around)
        inner = (0,) * len(start)
        one = OpenCall(name, phase, around, depth, start, inner, start[-1])
        open_here.append(one)
        records.open[id(function)] = one

    def _over(self, function: FunctionCall | None, failed: bool = False) -> None:
        records = self._records
        if function is None:
            records.open.clear()
            records.here.open.clear()
        one = records.open.pop(id(function), None)
        if one is None:
            return
        now, open_here = self._read(one), records.here.open
        one.is_over = True
        if one in open_here:  # what is inside was left by an exception
            for inner in open_here[open_here.index(one) :]:
                inner.is_over = True
        taken = tuple(end - start for start, end in zip(one.start, now, strict=True))
        if one.around is not None:
            one.around.inner = _sum(one.around.inner, taken)
            one.around.highest = max(one.around.highest, one.highest)
        if failed:
            return
        with records.lock:
            records.history.append((one.name, taken, one.depth))
            zero = (0,) * len(taken)
            records.sums.setdefault(one.name, Sums(zero, zero)).add(one, taken)
