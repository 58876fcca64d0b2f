"""Arrows of steps that are small enough to draw them by hand."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchprof_hooks.documents.export.chrome_trace.data_flow import (
    CATEGORY,
    FIRST_NUMBER,
    arrows,
    data_flow_events,
)
from torchprof_hooks.profiles.trace.step_trace import (
    LEAF_NODE,
    GraphPass,
    Operation,
    StepTrace,
    TensorType,
)

MAIN = 34
Edges = list[tuple[int, int]]
LEAF = LEAF_NODE


def operation(
    name: str, takes: list[int], writes: list[int], node: int | None, thread: int
) -> Operation:
    """A node of autograd is given a gradient first."""
    types = {block: TensorType("float32", (block,)) for block in takes}
    gradients = {*takes[:1]} if node is not None else set()
    written = dict.fromkeys(writes)
    return Operation(name, MAIN + thread, 0, 0, types, written, node, gradients)


def traced(operations: str, edges: Edges | None = None) -> StepTrace:
    """A step of operations one after the other, which are written ``add 1+2>3``: it
    takes blocks 1 and 2 of memory and writes 3. ``Exp#2@1 5>6`` is run for node 2 of
    the graph of a backward pass, in another thread."""
    found = []
    for position, text in enumerate(filter(None, operations.split(", "))):
        name, _, blocks = text.partition(" ")
        takes, writes = (
            [*map(int, re.findall(r"\d+", part))]
            for part in f"{blocks}>".split(">")[:2]
        )
        name, _, thread = name.partition("@")
        name, _, node = name.partition("#")
        number = LEAF if node == "leaf" else int(node) if node else None
        found.append(operation(name, takes, writes, number, int(thread or 0)))
        found[-1].start_ns, found[-1].end_ns = 1000 * position, 1000 * position + 600
    whole = GraphPass(0, 100_000, edges or [])
    return StepTrace(7, 12, MAIN, 0, 10_000, operations=found, passes=[whole])


def drawn(trace: StepTrace) -> str:
    """``randn -1-> exp`` for an arrow with block 1, ``-g->`` with a gradient."""
    carried = {f"float32[{block}]": f"{block}" for block in range(30)}
    carried["gradient"] = "g"
    return ", ".join(
        f"{arrow.producer.name} -{carried[arrow.carries]}-> {arrow.consumer.name}"
        for arrow in arrows(trace)
    )


BY_MEMORY: dict[str, tuple[str, str]] = {
    "several consumers, several producers": (
        "randn >1, exp 1>2, sin 1>3, add 2+3>4",
        "randn -1-> exp, randn -1-> sin, exp -2-> add, sin -3-> add",
    ),
    "written in place": (
        "randn >1, relu_ 1>1, exp 1>2, mul_ 1+2>1, sum 1>3",
        "randn -1-> relu_, relu_ -1-> exp, relu_ -1-> mul_, exp -2-> mul_, "
        "mul_ -1-> sum",
    ),
    "views": (
        "randn >1, view 1, t 1, mm 1>2",
        "randn -1-> view, randn -1-> t, randn -1-> mm",
    ),
    "not written in the step, until then": (
        "linear 1+2+3>4, add_ 2>2, exp 2>5",
        "add_ -2-> exp",
    ),
    "from another thread": ("randn@1 >1, exp 1>2", "randn -1-> exp"),
}


@pytest.mark.parametrize("situation", BY_MEMORY)
def test_a_tensor_comes_from_the_last_that_wrote_its_memory(situation: str) -> None:
    operations, expected = BY_MEMORY[situation]
    assert drawn(traced(operations)) == expected


# x.exp() and then + y, handed to a product: its backward pass. Adding hands on the
# block that it is given, so by memory alone `exp` would get it from `mul`.
CHAIN = "exp 1>2, ones >10, Mul#3 10+2>11, Add#2 11, Exp#1 11+2>12, leaf#leaf 12+20>20"


def test_gradients_go_along_the_graph_and_all_else_by_memory() -> None:
    assert drawn(traced(CHAIN, [(3, 2), (2, 1), (1, LEAF)])) == (
        "ones -10-> Mul, "  # no node has made it
        "exp -2-> Mul, "  # saved in forward
        "Mul -g-> Add, Add -g-> Exp, exp -2-> Exp, Exp -g-> leaf"
    )


@pytest.mark.parametrize(
    "edges",
    [[], [(103, 102), (102, 101)], [(5, 3), (6, 2), (7, 1), (8, LEAF)]],
    ids=["no graph", "the graph of another pass", "nodes that have not run"],
)
def test_where_the_graph_is_unknown_gradients_go_by_memory(edges: Edges) -> None:
    assert drawn(traced(CHAIN, edges)) == (
        "ones -10-> Mul, exp -2-> Mul, Mul -11-> Add, Mul -11-> Exp, exp -2-> Exp, "
        "Exp -12-> leaf"
    )


FED: dict[str, tuple[str, Edges, str]] = {
    # x.exp() went into sin() twice; the engine adds where gradients meet.
    "each node feeds once": (
        "Sin#3 10>11, Cos#2 10>12, add 11+12>13, Exp#1 13>14",
        [(2, 1), (3, 1), (3, 1)],
        "Sin -11-> add, Cos -12-> add, Cos -g-> Exp, Sin -g-> Exp",
    ),
    "the newest node that feeds leaves": (
        "Addmm#2 10>11+12+13, a#leaf 11, b#leaf 12, T#1 13, c#leaf 13",
        [(2, LEAF), (2, LEAF), (2, 1), (1, LEAF)],
        "Addmm -g-> a, Addmm -g-> b, Addmm -g-> T, T -g-> c",
    ),
    # Each device has a thread that runs its nodes.
    "leaves of threads": (
        "Exp#2 10>11, Copy#1@1 11>21, a#leaf 11, b#leaf@1 21, c#leaf@2 11",
        [(2, 1), (2, LEAF), (1, LEAF)],
        "Exp -g-> Copy, Exp -g-> a, Copy -g-> b, Exp -11-> c",
    ),
    "a second pass through the same graph": (  # retain_graph
        "Exp#2 10>11, Sin#1 11, a#leaf 11, Exp2#2 20>21, Sin2#1 21, b#leaf 21",
        2 * [(2, 1), (1, LEAF)],
        "Exp -g-> Sin, Sin -g-> a, Exp2 -g-> Sin2, Sin2 -g-> b",
    ),
}


@pytest.mark.parametrize("situation", FED)
def test_who_feeds_a_node(situation: str) -> None:
    operations, edges, expected = FED[situation]
    assert drawn(traced(operations, edges)) == expected


PASSES: dict[str, tuple[str, Edges, str]] = {
    # The first asks for a gradient that nobody hands on; the second starts anew.
    "one after the other": (
        "A#3 1, B#2 1, C#1 1",
        [(0, 900), (950, 9_000)],
        "B -g-> C",
    ),
    "one inside of the other": (
        "A#3 1, B#3 1, C#1 1, D#1 1",
        [(0, 9_000), (900, 2_700)],
        "B -g-> C, A -g-> D",
    ),
}


@pytest.mark.parametrize("situation", PASSES)
def test_several_passes(situation: str) -> None:
    operations, passes, expected = PASSES[situation]
    trace = traced(operations)
    trace.passes = [GraphPass(*each, [(3, 1), (2, 1)]) for each in passes]
    assert drawn(trace) == expected


def events_of(trace: StepTrace, base_ns: int = 0) -> list[dict[str, Any]]:
    return [json.loads(event) for event in data_flow_events(trace, base_ns)]


@pytest.mark.parametrize(
    ("duration_ns", "inside_us"), [(600, 0.01), (20, 0.01), (2, 0.001), (1, 0), (0, 0)]
)
def test_an_arrow_is_two_events_which_never_leave_their_operations(
    duration_ns: int, inside_us: float
) -> None:
    trace = traced("randn@1 >1, exp 1")
    for operation in trace.operations:
        operation.start_ns += 5_000
        operation.end_ns = operation.start_ns + duration_ns
    same = {"name": "float32[1]", "cat": CATEGORY, "id": FIRST_NUMBER, "pid": 12}
    assert events_of(trace, base_ns=5_000) == [
        {**same, "ph": "s", "tid": MAIN + 1, "ts": inside_us},
        {**same, "ph": "f", "bp": "e", "tid": MAIN, "ts": 1 + inside_us},
    ]


blocks = st.lists(st.integers(1, 6), max_size=3)
nodes = st.none() | st.integers(LEAF, 4)


@st.composite
def steps(draw: st.DrawFn) -> StepTrace:
    """Any operations, one after the other, in a few threads."""
    found = []
    time_ns = 0
    for position in range(draw(st.integers(0, 12))):
        thread = draw(st.integers(0, 2))
        name = f"{position}"
        made = operation(name, draw(blocks), draw(blocks), draw(nodes), thread)
        made.start_ns = time_ns + draw(st.integers(0, 2))
        made.end_ns = time_ns = made.start_ns + draw(st.integers(0, 3))
        found.append(made)
    edges = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(LEAF, 4))))
    passes = [GraphPass(0, time_ns, edges)]
    return StepTrace(7, 12, MAIN, 0, time_ns, operations=found, passes=passes)


@given(steps())
def test_any_arrow_goes_forward_once_from_operation_to_operation(
    trace: StepTrace,
) -> None:
    found = list(arrows(trace))
    places = [(int(a.producer.name), int(a.consumer.name), a.carries) for a in found]
    assert all(producer < consumer for producer, consumer, _ in places)
    assert len(set(places)) == len(places)
    assert [consumer for _, consumer, _ in places] == sorted(int(a[1]) for a in places)
    events = events_of(trace)
    assert len(events) == 2 * len(found)
    pairs = zip(found, events[::2], events[1::2], strict=True)
    for number, (arrow, start, end) in enumerate(pairs, FIRST_NUMBER):
        assert (start["ph"], end["ph"]) == ("s", "f")
        assert start["ts"] <= end["ts"]
        for event, around in ((start, arrow.producer), (end, arrow.consumer)):
            same = (number, CATEGORY, arrow.carries, 12, around.thread)
            fields = ("id", "cat", "name", "pid", "tid")
            assert tuple(event[field] for field in fields) == same
            assert around.start_ns <= round(event["ts"] * 1_000) <= around.end_ns
