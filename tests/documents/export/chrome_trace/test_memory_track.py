from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchprof_hooks.documents.export.chrome_trace.events import OBJECT, memory_events
from torchprof_hooks.profiles.trace.step_trace import Allocation, StepTrace, TensorType

START_NS = 1_000
END_NS = 9_000


def step(
    *allocations: Allocation, tensors: Mapping[int, TensorType] | None = None
) -> StepTrace:
    return StepTrace(
        7,
        12,
        34,
        START_NS,
        END_NS,
        allocations=list(allocations),
        tensors=dict(tensors or {}),
    )


def events_of(trace: StepTrace) -> list[dict[str, Any]]:
    return [json.loads(event) for event in memory_events(trace, 0)]


def drawn(trace: StepTrace) -> list[tuple[Any, ...]]:
    """Time and kind of each event, the number of the object, and what it says."""
    rows: list[tuple[Any, ...]] = []
    for event in events_of(trace):
        args = event.get("args", {})
        if event["ph"] == "C":
            rows.append((event["ts"], "C", event["name"], args["bytes in use"]))
        elif event["ph"] == "O":
            rows.append((event["ts"], "O", event["id"], args["snapshot"]))
        else:
            rows.append((event["ts"], event["ph"], event["id"]))
    return rows


def test_a_block_comes_to_be_says_what_it_is_and_is_gone_or_alive_at_the_end() -> None:
    trace = step(
        Allocation(1, 2_000, 100, "cpu", 100),
        Allocation(2, 3_000, 50, "cpu", 150),
        Allocation(1, 4_000, -100, "cpu", 50),
    )
    assert drawn(trace) == [
        (2.0, "N", "1"),
        (2.0, "O", "1", {"bytes": 100, "device": "cpu"}),
        (2.0, "C", "cpu memory", 100),
        (3.0, "N", "2"),
        (3.0, "O", "2", {"bytes": 50, "device": "cpu"}),
        (3.0, "C", "cpu memory", 150),
        (4.0, "D", "1"),
        (4.0, "C", "cpu memory", 50),
        (9.0, "O", "2", {"bytes": 50, "device": "cpu", "alive": True}),
    ]


def test_the_events_of_a_block_are_of_one_object() -> None:
    trace = step(Allocation(1, 2_000, 8, "cpu", 8), Allocation(1, 3_000, -8, "cpu", 0))
    of_block = [event for event in events_of(trace) if event["ph"] != "C"]
    for event in of_block:
        event.pop("args", None)
        del event["ts"]
    same = {"cat": "memory", "name": OBJECT, "id": "1", "pid": 12, "tid": 34}
    assert of_block == [{**same, "ph": phase} for phase in "NOD"]


def test_times_count_from_the_base() -> None:
    trace = step(Allocation(1, 2_345, 8, "cpu", 8))
    events = [json.loads(event) for event in memory_events(trace, START_NS)]
    assert [event["ts"] for event in events] == [1.345, 1.345, 1.345, 8.0]


def test_a_block_that_became_a_tensor_says_which() -> None:
    trace = step(
        Allocation(1, 2_000, 24, "cpu", 24),
        Allocation(2, 3_000, 64, "cpu", 88),  # of an operation's own use
        tensors={1: TensorType("float32", (2, 3))},
    )
    snapshots = [row[3] for row in drawn(trace) if row[1] == "O"]
    tensor = {"dtype": "float32", "shape": [2, 3], "bytes": 24, "device": "cpu"}
    other = {"bytes": 64, "device": "cpu"}
    assert snapshots == [
        tensor,
        other,
        {**tensor, "alive": True},
        {**other, "alive": True},
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


def test_what_is_freed_was_there_also_where_the_allocator_does_not_know() -> None:
    trace = step(
        Allocation(1, 2_000, 10, "cpu", 10),
        Allocation(2, 3_000, -50, "cpu", 10),
    )
    assert [row for row in drawn(trace) if row[1] != "O"] == [
        (1.0, "N", "2"),
        (1.0, "C", "cpu memory", 50),
        (2.0, "N", "1"),
        (2.0, "C", "cpu memory", 60),
        (3.0, "D", "2"),
        (3.0, "C", "cpu memory", 10),
    ]


def test_devices_have_counters_and_a_past_of_their_own() -> None:
    trace = step(
        Allocation(1, 2_000, 10, "cuda:0", 510),
        Allocation(2, 3_000, 20, "cpu", 20),
        Allocation(3, 4_000, 40, "cuda:1", 640),
        Allocation(1, 5_000, -10, "cuda:0", 500),
    )
    rows = drawn(trace)
    before = [row[2:] for row in rows if row[0] == 1.0 and row[1] == "O"]
    assert [(snapshot["device"], snapshot["bytes"]) for _, snapshot in before] == [
        ("cuda:0", 500),
        ("cuda:1", 600),
    ]
    assert len({number for number, _ in before}) == 2
    assert [row for row in rows if row[1] == "C"] == [
        (1.0, "C", "cuda:0 memory", 500),
        (1.0, "C", "cuda:1 memory", 600),
        (2.0, "C", "cuda:0 memory", 510),
        (3.0, "C", "cpu memory", 20),
        (4.0, "C", "cuda:1 memory", 640),
        (5.0, "C", "cuda:0 memory", 500),
    ]


@pytest.mark.parametrize("tensors", [{}, {1: TensorType("float32", (2,))}])
def test_a_step_that_allocates_nothing_shows_nothing(
    tensors: dict[int, TensorType],
) -> None:
    assert events_of(step(tensors=tensors)) == []


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
def test_an_object_ends_once_and_what_is_left_says_that_it_is_alive(
    trace: StepTrace,
) -> None:
    phases: dict[str, str] = {}
    snapshots: dict[str, list[dict[str, Any]]] = {}
    for event in events_of(trace):
        if event["ph"] != "C":
            number = event["id"]
            phases[number] = phases.get(number, "") + event["ph"]
            if event["ph"] == "O":
                snapshots.setdefault(number, []).append(event["args"]["snapshot"])
    for number, lived in phases.items():
        first, *last = snapshots[number]
        assert "alive" not in first
        if lived == "NOD":
            assert last == []
        else:
            assert lived == "NOO"
            assert last == [{**first, "alive": True}]


@given(steps())
def test_a_counter_is_the_sum_of_the_objects_that_are_there(trace: StepTrace) -> None:
    there: dict[str, dict[str, Any]] = {}
    for event in events_of(trace):
        if event["ph"] == "O":
            there[event["id"]] = event["args"]["snapshot"]
        elif event["ph"] == "D":
            del there[event["id"]]
        elif event["ph"] == "C":
            device = event["name"].removesuffix(" memory")
            in_use = sum(o["bytes"] for o in there.values() if o["device"] == device)
            assert event["args"] == {"bytes in use": in_use}
            assert in_use >= 0


@given(steps())
def test_a_counter_is_what_an_allocator_says_that_knows_all(trace: StepTrace) -> None:
    counters: dict[str, list[int]] = {}
    for event in events_of(trace):
        if event["ph"] == "C":
            device = event["name"].removesuffix(" memory")
            counters.setdefault(device, []).append(event["args"]["bytes in use"])
    for device, knows_all in DEVICES.items():
        said = [a.total_bytes for a in trace.allocations if a.device == device]
        if knows_all and said:
            assert counters[device][-len(said) :] == said


@given(steps())
def test_events_are_in_the_order_of_time_and_inside_of_the_step(
    trace: StepTrace,
) -> None:
    times = [event["ts"] for event in events_of(trace)]
    assert times == sorted(times)
    assert all(START_NS / 1_000 <= time <= END_NS / 1_000 for time in times)


def test_what_torch_adds_up_for_the_cpu_says_nothing_of_before() -> None:
    # Its profiler misses what is freed while it does not run.
    trace = step(Allocation(1, 2_000, 10, "cpu", 4_000_010))
    assert [event["args"] for event in events_of(trace) if event["ph"] == "C"] == [
        {"bytes in use": 10}
    ]


def test_memory_of_a_longer_step_around_this_one_is_alive_to_its_end() -> None:
    trace = step(Allocation(1, END_NS + 100, 10, "cpu", 10))
    assert [(ts, phase) for ts, phase, *_ in drawn(trace)] == [
        (9.1, "N"),
        (9.1, "O"),
        (9.1, "C"),
        (9.1, "O"),
    ]
