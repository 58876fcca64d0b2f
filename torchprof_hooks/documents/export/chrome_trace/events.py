"""Events of a Chrome trace, as JSON, and the tracks that we add: modules; blocks of
memory as objects; and how many bytes are in use on each device.

A trace of a step has thousands of events, so this module formats them itself, which
takes a third of the time of `json.dumps`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from math import floor
from typing import Any, Final

from torchprof_hooks.profiles.trace.step_trace import Allocation, ModuleSpan, StepTrace

#: A string as JSON; cached, as names repeat.
quoted: Final = lru_cache(maxsize=1 << 14)(json.dumps)

#: The number of a thread's track of modules is that of the thread, plus this. Systems
#: do not number threads that high.
MODULE_TRACK: Final = 1_000_000_000

OBJECT: Final = "Tensor memory"
#: The number of the first device's object for all that was allocated before the step.
#: Those of other devices follow downwards: blocks have positive numbers.
_BEFORE: Final = -1


class Track:
    """Makes events that appear on one track: that of a thread, or one beside these.

    base_ns: the moment from which the trace's times count.
    """

    def __init__(self, process: int, thread: int, base_ns: int) -> None:
        self._where = f'"pid":{process},"tid":{thread}'
        self._base_ns = base_ns

    def _at(self, time_ns: int) -> str:
        micros, nanos = divmod(time_ns - self._base_ns, 1000)
        return f'"ts":{micros}.{nanos:03d},{self._where}'

    def _as_read(self, time_ns: int) -> int:
        """The time, in nanoseconds, as viewers read it: as a floating-point number of
        microseconds, which beyond 2^42 microseconds cannot tell nanoseconds apart.
        torch counts from further back than that. This rounds as Perfetto does."""
        read_ns = (time_ns - self._base_ns) / 1000 * 1000
        # Not by adding a half: beyond 2^52, the sum is rounded, too.
        below_ns = floor(read_ns)
        return below_ns + (read_ns - below_ns >= 0.5)

    def metadata(self, name: str, args: str) -> str:
        """A name or a sort index for the process or the thread."""
        return f'{{"ph":"M","name":{quoted(name)},{self._where},"args":{args}}}'

    def span(
        self, name: str, category: str, start_ns: int, end_ns: int, **args: str
    ) -> str:
        """A slice."""
        # Slices that end together must do so in the viewer, too.
        duration_ns = self._as_read(end_ns) - self._as_read(start_ns)
        micros, nanos = divmod(duration_ns, 1000)
        more = f',"args":{json.dumps(args)}' if args else ""
        return (
            f'{{"ph":"X","cat":"{category}","name":{quoted(name)},'
            f'{self._at(start_ns)},"dur":{micros}.{nanos:03d}{more}}}'
        )

    def flow(
        self, name: str, category: str, number: int, time_ns: int, *, ends: bool = False
    ) -> str:
        """The beginning of an arrow, at the innermost slice of that moment; or the end
        of the arrow with this number."""
        phase = '"ph":"f","bp":"e"' if ends else '"ph":"s"'
        return (
            f'{{{phase},"cat":"{category}","name":{quoted(name)},"id":{number},'
            f"{self._at(time_ns)}}}"
        )

    def object_event(
        self, phase: str, name: str, number: int, time_ns: int, snapshot: str = ""
    ) -> str:
        """An object is created ("N"), has this snapshot ("O"), or is deleted ("D")."""
        args = f',"args":{{"snapshot":{snapshot}}}' if snapshot else ""
        return (
            f'{{"ph":"{phase}","cat":"memory","name":{quoted(name)},"id":"{number}",'
            f"{self._at(time_ns)}{args}}}"
        )

    def counter(self, name: str, series: str, value: int, time_ns: int) -> str:
        """The value of a counter from now on."""
        return (
            f'{{"ph":"C","cat":"memory","name":{quoted(name)},{self._at(time_ns)},'
            f'"args":{{{quoted(series)}:{value}}}}}'
        )


def module_events(trace: StepTrace, base_ns: int) -> Iterator[str]:
    """The step, and inside of it the modules. They have a track of their own, as a
    module's backward begins and ends inside of operations on the thread's track."""
    track = Track(trace.process, MODULE_TRACK + trace.thread, base_ns)
    yield track.metadata("thread_name", '{"name":"modules"}')
    yield track.metadata("thread_sort_index", f'{{"sort_index":{trace.thread - 1}}}')
    yield track.span(f"step {trace.step}", "step", trace.start_ns, trace.end_ns)
    for span in trace.modules:
        args = {"class": span.kind} if span.kind else {}
        yield track.span(
            _span_label(span), span.phase, span.start_ns, span.end_ns, **args
        )


def _span_label(span: ModuleSpan) -> str:
    is_plain = span.phase == "forward" or not span.kind  # "(optimizer) SGD"
    return span.name if is_plain else f"{span.name} {span.phase}"


def memory_events(trace: StepTrace, base_ns: int) -> Iterator[str]:
    """An object for each block, and a counter for each device.

    At any moment, the counter is the sum of the existing objects. What was allocated
    before the step is an object as well, if its size is known: CUDA's allocator knows
    it. For the CPU, torch's profiler counts itself, only while it is running.
    """
    if not trace.allocations:
        return
    begin_ns = min(trace.start_ns, trace.allocations[0].time_ns)
    end_ns = max(trace.end_ns, trace.allocations[-1].time_ns)
    memory = _Memory(trace, Track(trace.process, trace.thread, base_ns))
    for older in _from_before(trace):
        yield from memory.add(older._replace(time_ns=begin_ns), allocated_before=True)
    for allocation in trace.allocations:
        if allocation.size_bytes > 0:
            yield from memory.add(allocation)
        else:
            yield from memory.remove(allocation)
    yield from memory.end(end_ns)


class _Memory:
    """The blocks that are allocated at the moment; makes the events of changes."""

    def __init__(self, trace: StepTrace, track: Track) -> None:
        self._tensors = trace.tensors
        self._track = track
        self._in_use: defaultdict[str, int] = defaultdict(int)
        self._alive: dict[int, dict[str, Any]] = {}

    def add(self, allocation: Allocation, **also: Any) -> Iterator[str]:
        block, time_ns, size_bytes, device, _ = allocation
        tensor = self._tensors.get(block)
        snapshot = {} if tensor is None else tensor._asdict()
        self._alive[block] = {**snapshot, "bytes": size_bytes, "device": device, **also}
        yield self._track.object_event("N", OBJECT, block, time_ns)
        yield self._snapshot(block, time_ns)
        yield self._count(allocation)

    def remove(self, allocation: Allocation) -> Iterator[str]:
        del self._alive[allocation.block]
        yield self._track.object_event(
            "D", OBJECT, allocation.block, allocation.time_ns
        )
        yield self._count(allocation)

    def end(self, time_ns: int) -> Iterator[str]:
        for block, snapshot in self._alive.items():
            snapshot["alive"] = True
            yield self._snapshot(block, time_ns)

    def _snapshot(self, block: int, time_ns: int) -> str:
        snapshot = json.dumps(self._alive[block], separators=(",", ":"))
        return self._track.object_event("O", OBJECT, block, time_ns, snapshot)

    def _count(self, allocation: Allocation) -> str:
        _, time_ns, size_bytes, device, _ = allocation
        self._in_use[device] += size_bytes
        used_bytes = self._in_use[device]
        return self._track.counter(
            f"{device} memory", "bytes in use", used_bytes, time_ns
        )


def _from_before(trace: StepTrace) -> list[Allocation]:
    """Allocations before the step: blocks that are freed in the step, but not allocated
    in it; and on each device, the rest of what its allocator reports."""
    older: list[Allocation] = []
    rest: dict[str, int] = {}
    known = set[int]()
    for allocation in trace.allocations:
        block, _, size_bytes, device, total_bytes = allocation
        rest.setdefault(device, total_bytes - size_bytes)
        if size_bytes < 0 and block not in known:
            older.append(allocation._replace(size_bytes=-size_bytes))
            rest[device] += size_bytes
        known.add(block)
    for number, (device, size_bytes) in enumerate(rest.items()):
        if size_bytes > 0 and device != "cpu":
            older.append(Allocation(_BEFORE - number, 0, size_bytes, device, 0))
    return older
