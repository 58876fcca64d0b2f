"""Arrows of steps that are small enough to draw them by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
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
OTHER = 35


def op(
    name: str,
    takes: Iterable[int] = (),
    writes: Iterable[int] = (),
    *,
    node: int | None = None,
    gradients: Iterable[int] = (),
    thread: int = MAIN,
) -> Operation:
    """An operation on blocks; block 3 is a tensor "float32[3]"."""
    return Operation(
        name,
        thread,
        0,
        0,
        {block: TensorType("float32", (block,)) for block in takes},
        dict.fromkeys(writes),
        node,
        set(gradients),
    )


def traced(*operations: Operation, edges: Iterable[tuple[int, int]] = ()) -> StepTrace:
    """A step of operations one after the other."""
    for position, operation in enumerate(operations):
        operation.start_ns = 1_000 * position
        operation.end_ns = operation.start_ns + 600
    whole = GraphPass(0, 100_000, [*edges])
    return StepTrace(7, 12, MAIN, 0, 10_000, operations=[*operations], passes=[whole])


def drawn(trace: StepTrace) -> list[str]:
    return [
        f"{arrow.producer.name} -> {arrow.consumer.name}: {arrow.carries}"
        for arrow in arrows(trace)
    ]


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        pytest.param(
            [op("randn", writes=[1]), op("exp", [1], [2]), op("sum", [2], [3])],
            ["randn -> exp: float32[1]", "exp -> sum: float32[2]"],
            id="a chain",
        ),
        pytest.param(
            [
                op("randn", writes=[1]),
                op("exp", [1], [2]),
                op("sin", [1], [3]),
                op("add", [2, 3], [4]),
            ],
            [
                "randn -> exp: float32[1]",
                "randn -> sin: float32[1]",
                "exp -> add: float32[2]",
                "sin -> add: float32[3]",
            ],
            id="several consumers, several producers",
        ),
        pytest.param(
            [op("lstm", writes=[1, 2]), op("cat", [1, 2], [3])],
            ["lstm -> cat: float32[1]", "lstm -> cat: float32[2]"],
            id="two tensors between the same operations",
        ),
        pytest.param(
            [
                op("randn", writes=[1]),
                op("relu_", [1], [1]),
                op("exp", [1], [2]),
                op("mul_", [1, 2], [1]),
                op("sum", [1], [3]),
            ],
            [
                "randn -> relu_: float32[1]",
                "relu_ -> exp: float32[1]",
                "relu_ -> mul_: float32[1]",
                "exp -> mul_: float32[2]",
                "mul_ -> sum: float32[1]",
            ],
            id="written in place",
        ),
        pytest.param(
            [
                op("randn", writes=[1]),
                op("view", [1]),
                op("t", [1]),
                op("mm", [1], [2]),
            ],
            [
                "randn -> view: float32[1]",
                "randn -> t: float32[1]",
                "randn -> mm: float32[1]",
            ],
            id="views",
        ),
        pytest.param(
            [op("linear", [1, 2, 3], [4]), op("add_", [2], [2]), op("exp", [2], [5])],
            ["add_ -> exp: float32[2]"],
            id="not written in the step, until then",
        ),
        pytest.param(
            [op("randn", writes=[1], thread=OTHER), op("exp", [1], [2])],
            ["randn -> exp: float32[1]"],
            id="from another thread",
        ),
        pytest.param([], [], id="nothing"),
    ],
)
def test_a_tensor_comes_from_the_last_that_wrote_its_memory(
    operations: list[Operation], expected: list[str]
) -> None:
    assert drawn(traced(*operations)) == expected


# x.exp() and then + y, handed to a product: its backward pass. Adding hands on the
# block that it is given, so by memory alone `exp` would get it from `mul`.
CHAIN = [
    op("exp", [1], [2]),
    op("ones_like", writes=[10]),
    op("MulBackward", [10, 2], [11], node=3, gradients=[10]),
    op("AddBackward", [11], node=2, gradients=[11]),
    op("ExpBackward", [11, 2], [12], node=1, gradients=[11]),
    op("AccumulateGrad", [12, 20], [20], node=LEAF_NODE, gradients=[12]),
]


def test_gradients_go_along_the_graph_and_all_else_by_memory() -> None:
    assert drawn(traced(*CHAIN, edges=[(3, 2), (2, 1), (1, LEAF_NODE)])) == [
        "ones_like -> MulBackward: float32[10]",  # no node has made it
        "exp -> MulBackward: float32[2]",  # saved in forward
        "MulBackward -> AddBackward: gradient",
        "AddBackward -> ExpBackward: gradient",
        "exp -> ExpBackward: float32[2]",
        "ExpBackward -> AccumulateGrad: gradient",
    ]


@pytest.mark.parametrize(
    "edges",
    [
        pytest.param([], id="none is known"),
        pytest.param([(103, 102), (102, 101)], id="of another pass"),
        pytest.param([(5, 3), (6, 2), (7, 1), (8, LEAF_NODE)], id="of nodes not run"),
    ],
)
def test_where_the_graph_is_unknown_gradients_go_by_memory(
    edges: list[tuple[int, int]],
) -> None:
    assert drawn(traced(*CHAIN, edges=edges)) == [
        "ones_like -> MulBackward: float32[10]",
        "exp -> MulBackward: float32[2]",
        "MulBackward -> AddBackward: float32[11]",
        "MulBackward -> ExpBackward: float32[11]",
        "exp -> ExpBackward: float32[2]",
        "ExpBackward -> AccumulateGrad: float32[12]",
    ]


@pytest.mark.parametrize(
    ("operations", "edges", "expected"),
    [
        pytest.param(
            [
                op("Sin", [10], [11], node=3, gradients=[10]),
                op("Cos", [10], [12], node=2, gradients=[10]),
                op("add", [11, 12], [13]),  # the engine, where gradients meet
                op("Exp", [13], [14], node=1, gradients=[13]),
            ],
            [(2, 1), (3, 1), (3, 1)],  # x.exp() went into sin() twice
            [
                "Sin -> add: float32[11]",
                "Cos -> add: float32[12]",
                "Cos -> Exp: gradient",
                "Sin -> Exp: gradient",
            ],
            id="each node feeds once",
        ),
        pytest.param(
            [
                op("Addmm", [10], [11, 12, 13], node=2, gradients=[10]),
                op("leaf 1", [11], node=LEAF_NODE, gradients=[11]),
                op("leaf 2", [12], node=LEAF_NODE, gradients=[12]),
                op("T", [13], node=1, gradients=[13]),
                op("leaf 3", [13], node=LEAF_NODE, gradients=[13]),
            ],
            [(2, LEAF_NODE), (2, LEAF_NODE), (2, 1), (1, LEAF_NODE)],
            [
                "Addmm -> leaf 1: gradient",
                "Addmm -> leaf 2: gradient",
                "Addmm -> T: gradient",
                "T -> leaf 3: gradient",
            ],
            id="the newest node that feeds leaves",
        ),
        pytest.param(  # each device has a thread that runs its nodes
            [
                op("Exp", [10], [11], node=2, gradients=[10]),
                op("Copy", [11], [21], node=1, gradients=[11], thread=OTHER),
                op("leaf 1", [11], node=LEAF_NODE, gradients=[11]),
                op("leaf 2", [21], node=LEAF_NODE, gradients=[21], thread=OTHER),
                op("leaf 3", [11], node=LEAF_NODE, gradients=[11], thread=36),
            ],
            [(2, 1), (2, LEAF_NODE), (1, LEAF_NODE)],
            [
                "Exp -> Copy: gradient",
                "Exp -> leaf 1: gradient",
                "Copy -> leaf 2: gradient",
                "Exp -> leaf 3: float32[11]",
            ],
            id="leaves of threads",
        ),
        pytest.param(
            [op("A", node=2, gradients=[1]), op("B", node=1)],
            [(2, 1)],
            [],
            id="no gradient was given",
        ),
    ],
)
def test_who_feeds_a_node(
    operations: list[Operation], edges: list[tuple[int, int]], expected: list[str]
) -> None:
    assert drawn(traced(*operations, edges=edges)) == expected


@pytest.mark.parametrize(
    ("nodes", "passes", "expected"),
    [
        # The first asks for a gradient that nobody hands on; the second starts anew.
        ((3, 2, 1), [(0, 900), (950, 9_000)], ["B -> C: gradient"]),
        (
            (3, 3, 1, 1),
            [(0, 9_000), (900, 2_700)],
            ["B -> C: gradient", "A -> D: gradient"],
        ),
    ],
    ids=["one after the other", "one inside of the other"],
)
def test_several_passes(
    nodes: tuple[int, ...], passes: list[tuple[int, int]], expected: list[str]
) -> None:
    names = zip("ABCD", nodes, strict=False)
    trace = traced(*(op(name, node=node, gradients=[1]) for name, node in names))
    trace.passes = [GraphPass(*pass_, [(3, 1), (2, 1)]) for pass_ in passes]
    assert drawn(trace) == expected


def test_in_a_second_pass_through_a_graph_nodes_are_fed_by_that_pass() -> None:
    def backward(name: str, block: int) -> list[Operation]:
        return [
            op(f"{name}: Exp", [block], [block + 1], node=2, gradients=[block]),
            op(f"{name}: Sin", [block + 1], node=1, gradients=[block + 1]),
            op(f"{name}: leaf", [block + 1], node=LEAF_NODE, gradients=[block + 1]),
        ]

    passes = [*backward("first", 10), *backward("second", 20)]  # retain_graph
    assert drawn(traced(*passes, edges=2 * [(2, 1), (1, LEAF_NODE)])) == [
        "first: Exp -> first: Sin: gradient",
        "first: Sin -> first: leaf: gradient",
        "second: Exp -> second: Sin: gradient",
        "second: Sin -> second: leaf: gradient",
    ]


def events_of(trace: StepTrace, base_ns: int = 0) -> list[dict[str, Any]]:
    return [json.loads(event) for event in data_flow_events(trace, base_ns)]


def test_an_arrow_is_two_events() -> None:
    trace = traced(op("randn", writes=[1], thread=OTHER), op("exp", [1]))
    for operation in trace.operations:  # 5000 to 5600, and 6000 to 6600
        operation.start_ns += 5_000
        operation.end_ns += 5_000
    same = {"name": "float32[1]", "cat": CATEGORY, "id": FIRST_NUMBER, "pid": 12}
    assert events_of(trace, base_ns=5_000) == [
        {**same, "ph": "s", "tid": OTHER, "ts": 0.01},
        {**same, "ph": "f", "bp": "e", "tid": MAIN, "ts": 1.01},
    ]


@pytest.mark.parametrize(
    ("duration_ns", "expected"),
    [(20, [0.01, 1.01]), (2, [0.001, 1.001]), (1, [0.0, 1.0]), (0, [0.0, 1.0])],
)
def test_it_never_leaves_the_shortest_operation(
    duration_ns: int, expected: list[float]
) -> None:
    trace = traced(op("randn", writes=[1]), op("exp", [1]))
    for operation in trace.operations:
        operation.end_ns = operation.start_ns + duration_ns
    assert [event["ts"] for event in events_of(trace)] == expected


blocks = st.lists(st.integers(1, 6), max_size=3)
nodes = st.none() | st.integers(LEAF_NODE, 4)


@st.composite
def steps(draw: st.DrawFn) -> StepTrace:
    """Any operations, one after the other, in a few threads."""
    operations = []
    time_ns = 0
    for position in range(draw(st.integers(0, 12))):
        takes = draw(blocks)
        threads = st.integers(MAIN, MAIN + 2)
        operation = op(f"{position}", takes, draw(blocks), thread=draw(threads))
        operation.node, operation.gradients = draw(nodes), set(takes[:1])
        operation.start_ns = time_ns + draw(st.integers(0, 2))
        operation.end_ns = time_ns = operation.start_ns + draw(st.integers(0, 3))
        operations.append(operation)
    edges = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(LEAF_NODE, 4))))
    return StepTrace(
        7,
        12,
        MAIN,
        0,
        time_ns,
        operations=operations,
        passes=[GraphPass(0, time_ns, edges)],
    )


@given(steps())
def test_each_start_has_one_end_and_both_are_inside_of_their_operations(
    trace: StepTrace,
) -> None:
    events = events_of(trace)
    starts = [event for event in events if event["ph"] == "s"]
    ends = [event for event in events if event["ph"] == "f"]
    expected = list(arrows(trace))

    assert len(events) == 2 * len(expected)
    assert [event["id"] for event in starts] == [
        FIRST_NUMBER + number for number in range(len(expected))
    ]
    for arrow, start, end in zip(expected, starts, ends, strict=True):
        for field in ("id", "cat", "name", "pid"):
            assert start[field] == end[field]
        assert start["name"] == arrow.carries
        for event, operation in ((start, arrow.producer), (end, arrow.consumer)):
            assert event["tid"] == operation.thread
            assert operation.start_ns <= round(event["ts"] * 1_000) <= operation.end_ns
        assert start["ts"] <= end["ts"]


@given(steps())
def test_arrows_go_forward_and_each_is_there_once(trace: StepTrace) -> None:
    drawn_arrows = [
        (int(arrow.producer.name), int(arrow.consumer.name), arrow.carries)
        for arrow in arrows(trace)
    ]
    assert all(producer < consumer for producer, consumer, _ in drawn_arrows)
    assert len(set(drawn_arrows)) == len(drawn_arrows)
    consumers = [consumer for _, consumer, _ in drawn_arrows]
    assert consumers == sorted(consumers)
