"""What the timer and the memory hook of functions have measured, by name."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from typing import Final

from torchprof_hooks.capture.functions.function_call import FunctionCall
from torchprof_hooks.capture.tracking.meters.meters import MemoryMeter
from torchprof_hooks.profiles.names import Phase

#: How many names have sums of their own, as a program may make new ones forever; and
#: the name of the rest.
NAMES_KEPT: Final = 4096
OTHER_FUNCTIONS: Final = "(other functions)"


class OpenCall:
    """A call that is open.

    around: the open call that it is a part of.
    start: what was read when it began. peak_bytes: the highest level since.
    inner: what the calls inside of it took.
    """

    __slots__ = (
        "around",
        "depth",
        "inner",
        "is_over",
        "name",
        "peak_bytes",
        "phase",
        "start",
    )

    def __init__(
        self,
        name: str,
        phase: Phase,
        around: OpenCall | None,
        start: tuple[int, ...],
    ) -> None:
        self.name, self.phase, self.around = name, phase, around
        self.depth: int = 0 if around is None else around.depth + 1
        self.is_over = False
        self.start = start
        self.inner = [0] * len(start)
        self.peak_bytes = 0


class Sums:
    """Of the calls of one name: how many there were, and what they took: by phase;
    those in no other call (`outermost`); the calls inside of them (`inner`).

    peak_bytes: the highest rise of the memory in use within one of them.
    """

    def __init__(self, fields: int) -> None:
        self.calls = self.peak_bytes = 0
        self.by_phase: dict[Phase, list[int]] = {}
        self.outermost, self.inner = [0] * fields, [0] * fields

    def total(self, field: int) -> int:
        """Of all phases."""
        return sum(numbers[field] for numbers in self.by_phase.values())

    def add(self, one: OpenCall, taken: Sequence[int]) -> None:
        """Add a call that has ended."""
        self.calls += 1
        _add(self.by_phase.setdefault(one.phase, [0] * len(taken)), taken)
        _add(self.inner, one.inner)
        if one.around is None:
            _add(self.outermost, taken)


def _add(sums: list[int], taken: Sequence[int]) -> None:
    for field, number in enumerate(taken):
        sums[field] += number


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.open: list[OpenCall] = []
        self.meter: MemoryMeter | None = None


class FunctionRecords:
    """Measures what is between the begin and the end of calls; this class, time.

    history_size: how many of the newest calls are kept one by one.
    name_of: the name under which a call counts.
    history: (name, what it took, depth) of these, in the order in which they ended.
    """

    def __init__(
        self, history_size: int, name_of: Callable[[FunctionCall], str]
    ) -> None:
        self._name_of = name_of
        self.history: deque[tuple[str, tuple[int, ...], int]] = deque(
            maxlen=history_size
        )
        self.sums: dict[str, Sums] = {}
        self._lock = threading.Lock()  # threads of one hook have one history
        self._here = _OfThread()
        self._open: dict[tuple[int, bool], OpenCall] = {}

    def began(self, call: FunctionCall, phase: Phase) -> None:
        """A call is about to begin."""
        name, around = self._name_of(call), self._innermost()
        if len(self.sums) >= NAMES_KEPT and name not in self.sums:
            name = OTHER_FUNCTIONS
        one = OpenCall(name, phase, around, self._read(around))
        self._here.open.append(one)
        self._open[id(call), phase == "backward"] = one

    def ended(self, call: FunctionCall, is_backward: bool, failed: bool) -> None:
        """A call has ended."""
        one = self._open.pop((id(call), is_backward), None)
        now = self._read(one)
        if one is None:
            return
        one.is_over = True
        open_here = self._here.open
        if one in open_here:  # what is inside was left by an exception
            for inner in open_here[open_here.index(one) :]:
                inner.is_over = True
        taken = self._taken(one, now)
        if one.around is not None:
            _add(one.around.inner, taken)
        if not failed:
            with self._lock:
                self.history.append((one.name, taken, one.depth))
                sums = self.sums.setdefault(one.name, Sums(len(taken)))
                sums.add(one, taken)
                sums.peak_bytes = max(sums.peak_bytes, one.peak_bytes)

    def drop_open_calls(self) -> None:
        """Nobody will tell how they end."""
        self._here.open.clear()
        self._open.clear()

    def _innermost(self) -> OpenCall | None:
        """The innermost open call of this thread."""
        open_here = self._here.open
        while open_here and open_here[-1].is_over:
            open_here.pop()
        return open_here[-1] if open_here else None

    def _read(self, innermost: OpenCall | None) -> tuple[int, ...]:
        return (perf_counter_ns(),)

    def _taken(self, one: OpenCall, now: Sequence[int]) -> tuple[int, ...]:
        return tuple(end - start for start, end in zip(one.start, now, strict=True))


class MemoryRecords(FunctionRecords):
    """The same of used and acquired bytes.

    new_meter: makes what is read, one for each thread.
    """

    def __init__(
        self,
        history_size: int,
        name_of: Callable[[FunctionCall], str],
        new_meter: Callable[[], MemoryMeter],
    ) -> None:
        super().__init__(history_size, name_of)
        self._new_meter = new_meter

    def _read(self, innermost: OpenCall | None) -> tuple[int, ...]:
        here = self._here
        if here.meter is None:
            here.meter = self._new_meter()
            here.meter.start()
        used, acquired, level, peak = here.meter.read()
        if innermost is not None:
            innermost.peak_bytes = max(innermost.peak_bytes, peak - innermost.start[2])
        return used, acquired, level

    def _taken(self, one: OpenCall, now: Sequence[int]) -> tuple[int, ...]:
        around = one.around
        if around is not None:
            highest = one.start[2] + one.peak_bytes
            around.peak_bytes = max(around.peak_bytes, highest - around.start[2])
        return super()._taken(one, now)
