"""Memory in traces: an object for each block, a counter for each device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from torchprof_hooks.documents.export.chrome_trace.events import memory_events
from torchprof_hooks.profiles.trace.step_trace import Allocation, StepTrace, TensorType

START_NS = 1_000
END_NS = 9_000


def step(
    *allocations: Allocation, tensors: Mapping[int, TensorType] | None = None
) -> StepTrace:
    trace = StepTrace(7, 12, 34, START_NS, END_NS, allocations=list(allocations))
    trace.tensors = dict(tensors or {})
    return trace


def events_of(trace: StepTrace) -> list[dict[str, Any]]:
    return [json.loads(event) for event in memory_events(trace, 0)]


def drawn(trace: StepTrace) -> list[tuple[Any, ...]]:
    """Time and kind of each event, the object or counter, and what it says."""
    return [
        (e["ts"], e["ph"], e.get("id") or e["name"], *e.get("args", {}).values())
        for e in events_of(trace)
    ]


def test_what_an_allocator_knows_from_before_is_there_from_the_start() -> None:
    # 1000 bytes before the step; 300 of them are freed in it.
    trace = step(
        Allocation(1, 2_000, 100, "cuda:0", 1_100),
        Allocation(2, 3_000, -300, "cuda:0", 800),
        Allocation(1, 4_000, -100, "cuda:0", 700),
        tensors={2: TensorType("float16", (150,))},
    )
    freed: dict[str, Any] = {"dtype": "float16", "shape": [150], "bytes": 300}
    freed |= {"device": "cuda:0", "allocated_before": True}
    rest = {"bytes": 700, "device": "cuda:0", "allocated_before": True}
    assert drawn(trace) == [
        (1.0, "N", "2"),
        (1.0, "O", "2", freed),
        (1.0, "C", "cuda:0 memory", 300),
        (1.0, "N", "-1"),
        (1.0, "O", "-1", rest),
        (1.0, "C", "cuda:0 memory", 1_000),
        (2.0, "N", "1"),
        (2.0, "O", "1", {"bytes": 100, "device": "cuda:0"}),
        (2.0, "C", "cuda:0 memory", 1_100),
        (3.0, "D", "2"),
        (3.0, "C", "cuda:0 memory", 800),
        (4.0, "D", "1"),
        (4.0, "C", "cuda:0 memory", 700),
        (9.0, "O", "-1", {**rest, "alive": True}),
    ]


#: Whether its allocator knows what it gave out before the step.
DEVICES = {"cpu": False, "cuda:0": True, "cuda:1": True}
sizes = st.integers(1, 2**40)


@st.composite
def steps(draw: st.DrawFn) -> StepTrace:
    """Allocations and frees as they can happen, also of what was there before."""
    totals = dict.fromkeys(DEVICES, 0)
    there: dict[int, tuple[str, int]] = {}  # device and bytes of each block
    numbers = count(1)
    blocks = st.tuples(st.sampled_from(sorted(DEVICES)), sizes)
    for device, size in draw(st.lists(blocks, max_size=4)):
        there[next(numbers)] = device, size
        totals[device] += size if DEVICES[device] else 0
    unknown = {block for block, (device, _) in there.items() if not DEVICES[device]}
    allocations = []
    time_ns = START_NS
    for _ in range(draw(st.integers(0, 12))):
        time_ns += draw(st.integers(0, 2))
        block = draw(st.sampled_from([next(numbers), *there]))
        if block in there:
            device, size = there.pop(block)
            change = -size
        else:
            device, change = there[block] = draw(blocks)
        totals[device] += 0 if block in unknown else change
        allocations.append(Allocation(block, time_ns, change, device, totals[device]))
    return step(*allocations)


@given(steps())
def test_objects_and_counters_of_any_step(trace: StepTrace) -> None:
    """An object ends once, or is said to be alive; a counter is the sum of the objects
    that are there, and what an allocator says that knows all."""
    there: dict[str, dict[str, Any]] = {}
    left: list[str] = []
    counters: dict[str, list[int]] = {device: [] for device in DEVICES}
    time = START_NS / 1_000
    for event in events_of(trace):
        assert time <= event["ts"] <= END_NS / 1_000
        time, number = event["ts"], event.get("id", "")
        if event["ph"] == "N":
            assert number not in there
            there[number] = {}
        elif event["ph"] == "D":
            assert there.pop(number)
        elif event["ph"] == "C":
            device = event["name"].removesuffix(" memory")
            in_use = sum(o["bytes"] for o in there.values() if o["device"] == device)
            assert event["args"] == {"bytes in use": in_use}
            assert in_use >= 0
            counters[device].append(in_use)
        elif there[number]:
            assert event["args"]["snapshot"] == {**there[number], "alive": True}
            left.append(number)
        else:
            there[number] = event["args"]["snapshot"]
            assert "alive" not in there[number]
    assert left == [*there]
    for device, knows_all in DEVICES.items():
        said = [a.total_bytes for a in trace.allocations if a.device == device]
        if knows_all and said:
            assert counters[device][-len(said) :] == said


def test_memory_of_a_longer_step_around_this_one_is_alive_to_its_end() -> None:
    trace = step(Allocation(1, END_NS + 100, 10, "cpu", 10))
    assert [each[:2] for each in drawn(trace)] == [(9.1, phase) for phase in "NOCO"]
