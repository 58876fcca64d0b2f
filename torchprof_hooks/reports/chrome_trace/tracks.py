"""Tracks beside those of torch: modules; blocks of memory as objects; and how many
bytes are in use on each device."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

from torchprof_hooks.profiles.trace.step_trace import Allocation, ModuleSpan, StepTrace
from torchprof_hooks.reports.chrome_trace.events import Place

#: Is added to the number of a thread for that of its track of modules. Systems do not
#: number threads that high.
MODULE_TRACK: Final = 1_000_000_000

OBJECT: Final = "Tensor memory"
#: Number of the object that stands for everything allocated before the step, one for
#: each device, counted down: blocks have positive numbers.
_BEFORE: Final = -1


def module_events(trace: StepTrace, base_ns: int) -> Iterator[str]:
    """The step, and inside of it the modules, on a track of their own: a module's
    backward begins and ends inside of operations of the thread."""
    track = Place(trace.process, MODULE_TRACK + trace.thread, base_ns)
    yield track.metadata("thread_name", '{"name":"modules"}')
    yield track.metadata("thread_sort_index", f'{{"sort_index":{trace.thread - 1}}}')
    yield track.span(f"step {trace.step}", "step", trace.start_ns, trace.end_ns)
    for span in trace.modules:
        args = {"class": span.kind} if span.kind else {}
        yield track.span(_label(span), span.phase, span.start_ns, span.end_ns, **args)


def _label(span: ModuleSpan) -> str:
    is_plain = span.phase == "forward" or not span.kind  # "(optimizer) SGD"
    return span.name if is_plain else f"{span.name} {span.phase}"


def memory_events(trace: StepTrace, base_ns: int) -> Iterator[str]:
    """An object for each block, and a counter for each device.

    At any moment, the counter is the sum of the objects that are there. What was there
    before the step is an object as well, if the allocator knows: CUDA's does, the CPU's
    (of which torch's profiler keeps account by itself, while it is running) does not.
    """
    if not trace.allocations:
        return
    begin_ns = min(trace.start_ns, trace.allocations[0].time_ns)
    end_ns = max(trace.end_ns, trace.allocations[-1].time_ns)
    memory = _Memory(trace, Place(trace.process, trace.thread, base_ns))
    for older in _from_before(trace):
        yield from memory.add(older._replace(time_ns=begin_ns), allocated_before=True)
    for allocation in trace.allocations:
        if allocation.size_bytes > 0:
            yield from memory.add(allocation)
        else:
            yield from memory.remove(allocation)
    yield from memory.end(end_ns)


class _Memory:
    """The blocks that are allocated at the moment."""

    def __init__(self, trace: StepTrace, place: Place) -> None:
        self._tensors = trace.tensors
        self._place = place
        self._in_use: defaultdict[str, int] = defaultdict(int)
        self._alive: dict[int, dict[str, Any]] = {}

    def add(self, allocation: Allocation, **also: Any) -> Iterator[str]:
        block, time_ns, size_bytes, device, _ = allocation
        tensor = self._tensors.get(block)
        snapshot = {} if tensor is None else tensor._asdict()
        self._alive[block] = {**snapshot, "bytes": size_bytes, "device": device, **also}
        yield self._place.object_event("N", OBJECT, block, time_ns)
        yield self._look_at(block, time_ns)
        yield self._count(allocation)

    def remove(self, allocation: Allocation) -> Iterator[str]:
        del self._alive[allocation.block]
        yield self._place.object_event(
            "D", OBJECT, allocation.block, allocation.time_ns
        )
        yield self._count(allocation)

    def end(self, time_ns: int) -> Iterator[str]:
        for block, snapshot in self._alive.items():
            snapshot["alive"] = True
            yield self._look_at(block, time_ns)

    def _look_at(self, block: int, time_ns: int) -> str:
        snapshot = json.dumps(self._alive[block], separators=(",", ":"))
        return self._place.object_event("O", OBJECT, block, time_ns, snapshot)

    def _count(self, allocation: Allocation) -> str:
        _, time_ns, size_bytes, device, _ = allocation
        self._in_use[device] += size_bytes
        used_bytes = self._in_use[device]
        return self._place.counter(
            f"{device} memory", "bytes in use", used_bytes, time_ns
        )


def _from_before(trace: StepTrace) -> list[Allocation]:
    """What must have been allocated before the step: blocks that are freed in it only,
    and on each device the rest of what its allocator says."""
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
