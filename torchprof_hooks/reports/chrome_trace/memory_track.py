"""Blocks of memory as objects, and how many bytes are in use on each device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from torchprof_hooks.profiles.step_trace import Allocation, StepTrace
from torchprof_hooks.reports.chrome_trace.events import Place

OBJECT: Final = "Tensor memory"
#: Number of the object that stands for everything allocated before the step, one for
#: each device, counted down: blocks have positive numbers.
_BEFORE: Final = -1


def memory_events(trace: StepTrace, base_ns: int) -> Iterator[str]:
    """An object for each block, and a counter for each device.

    At any moment, the counter is the sum of the objects that are there. What was there
    before the step is an object as well, as far as the allocator knows: CUDA's knows
    all of it, the CPU's nothing.
    """
    place = Place(trace.process, trace.thread, base_ns)
    in_use = dict[str, int]()
    alive = dict[int, dict[str, Any]]()

    def create(
        number: int, time_ns: int, size_bytes: int, device: str, **also: Any
    ) -> Iterator[str]:
        snapshot = {**_tensor(trace, number), "bytes": size_bytes, "device": device}
        alive[number] = snapshot = {**snapshot, **also}
        yield place.object_event("N", OBJECT, number, time_ns)
        yield place.object_event("O", OBJECT, number, time_ns, _json(snapshot))

    for number, older in _from_before(trace).items():
        yield from create(
            number,
            trace.start_ns,
            older.size_bytes,
            older.device,
            allocated_before=True,
        )
        in_use[older.device] = in_use.get(older.device, 0) + older.size_bytes
    for device, used_bytes in in_use.items():
        yield _counter(place, device, used_bytes, trace.start_ns)
    for allocation in trace.allocations:
        block, time_ns, size_bytes, device, _ = allocation
        if size_bytes > 0:
            yield from create(block, time_ns, size_bytes, device)
        elif alive.pop(block, None) is not None:
            yield place.object_event("D", OBJECT, block, time_ns)
        in_use[device] = in_use.get(device, 0) + size_bytes
        yield _counter(place, device, in_use[device], time_ns)
    for number, snapshot in alive.items():
        yield place.object_event(
            "O", OBJECT, number, trace.end_ns, _json({**snapshot, "alive": True})
        )


def _from_before(trace: StepTrace) -> dict[int, Allocation]:
    """What must have been allocated before the step: blocks that are freed in it only,
    and on each device the rest of what its allocator says."""
    blocks: dict[int, Allocation] = {}
    rest: dict[str, int] = {}
    allocated = set[int]()
    for allocation in trace.allocations:
        block, _, size_bytes, device, total_bytes = allocation
        rest.setdefault(device, total_bytes - size_bytes)
        if size_bytes > 0:
            allocated.add(block)
        elif block not in allocated and block not in blocks:
            blocks[block] = allocation._replace(size_bytes=-size_bytes)
            rest[device] += size_bytes
    for number, (device, size_bytes) in enumerate(rest.items()):
        if size_bytes > 0:
            blocks[_BEFORE - number] = Allocation(0, 0, size_bytes, device, 0)
    return blocks


def _tensor(trace: StepTrace, block: int) -> dict[str, Any]:
    tensor = trace.tensors.get(block)
    if tensor is None:
        return {}
    return {"dtype": tensor.dtype, "shape": tensor.shape}


def _json(snapshot: dict[str, Any]) -> str:
    return json.dumps(snapshot, separators=(",", ":"))


def _counter(place: Place, device: str, used_bytes: int, time_ns: int) -> str:
    return place.counter(f"{device} memory", "bytes in use", used_bytes, time_ns)
