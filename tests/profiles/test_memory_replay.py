from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from torchprof_hooks.profiles.files.codec import DamageError
from torchprof_hooks.profiles.files.profile_file import SCHEMA
from torchprof_hooks.profiles.trace.memory_replay import (
    DeviceReplay,
    MemoryReplay,
    OutputRow,
    replay_memory,
)
from torchprof_hooks.profiles.trace.step_outputs import CREATED, Output
from torchprof_hooks.profiles.trace.step_trace import (
    Allocation,
    ModuleSpan,
    Operation,
    StepTrace,
    TensorType,
)
from torchprof_hooks.tracing.recorded_step import MemoryStep

CODEC = SCHEMA.of(MemoryReplay)
NODE = "autograd::engine::evaluate_function: "
KB = 1024
THREAD = 34
END_NS = 10_000


def created_bytes(row: OutputRow) -> int:
    """Bytes that operations have allocated: views and writes in place allocate none."""
    made = (output.size_bytes for output in row.outputs if output.kind == CREATED)
    return row.times * sum(made)


def floats(count: int) -> TensorType:
    return TensorType("float32", (count,))


def operation(
    name: str,
    start_ns: int,
    end_ns: int,
    takes: Mapping[int, TensorType] | None = None,
    writes: Iterable[int] = (),
    **other: Any,
) -> Operation:
    thread = other.pop("thread", THREAD)
    return Operation(
        name,
        thread,
        start_ns,
        end_ns,
        dict(takes or {}),
        dict.fromkeys(writes),
        **other,
    )


def allocation(
    block: int, time_ns: int, size_bytes: int, device: str = "cpu"
) -> Allocation:
    return Allocation(block, time_ns, size_bytes, device, 0)


def step(
    operations: list[Operation],
    allocations: list[Allocation] = [],  # noqa: B006 - not changed
    **other: Any,
) -> StepTrace:
    trace = StepTrace(3, 12, THREAD, 0, END_NS, **other)
    trace.operations += operations
    trace.allocations += sorted(allocations, key=lambda each: each.time_ns)
    return trace


def figures(trace: StepTrace) -> dict[str, tuple[int, int, int]]:
    """Of each device: as run, without in-place writes, without freeing."""
    return {
        replay.device: (
            replay.as_run_bytes,
            replay.without_inplace_bytes,
            replay.without_freeing_bytes,
        )
        for replay in replay_memory(trace).devices
    }


def outputs(replay: MemoryReplay) -> list[tuple[str, str]]:
    """Operation, and its outputs as text: "c float32[3] 12"."""
    return [
        (row.operation, ", ".join(f"{kind} {t or '?'} {n}" for kind, t, n in each))
        for row in replay.rows
        for each in [row.outputs] * row.times
    ]


# The replay as it ran


def test_what_was_created_counts_until_it_is_freed() -> None:
    trace = step(
        [
            operation("aten::exp", 100, 200, {1: floats(25)}, [2]),
            operation("aten::sin", 300, 400, {2: floats(25)}, [3]),
            operation("aten::cos", 500, 600, {3: floats(50)}, [4]),
        ],
        [
            allocation(2, 150, 100),
            allocation(3, 350, 200),
            allocation(2, 450, -100),  # 300 so far
            allocation(4, 550, 60),  # 260
        ],
    )
    assert figures(trace) == {"cpu": (300, 300, 360)}
    (device,) = replay_memory(trace).devices
    assert device.operation == "aten::sin"
    assert device.levels == ((150, 100), (350, 300), (450, 200), (550, 260))


def test_levels_are_thinned_out_but_not_the_peak() -> None:
    operations = [
        operation("aten::exp", 10 * n, 10 * n + 9, writes=[n]) for n in range(500)
    ]
    allocations = [
        change
        for n in range(500)
        for change in (
            allocation(n, 10 * n + 1, 900 if n == 321 else 100),
            allocation(n, 10 * n + 12, -900 if n == 321 else -100),
        )
    ]
    (device,) = replay_memory(step(operations, allocations)).devices
    offsets = [level.offset_ns for level in device.levels]
    assert offsets == sorted(offsets)
    assert len(offsets) <= 2 * 128
    assert max(device.levels, key=lambda level: level.size_bytes) == (3211, 1000)
    assert device.levels[-1] == (5002, 0)


def test_workspace_and_inputs_do_not_count() -> None:
    trace = step(
        [operation("aten::mm", 100, 200, {1: floats(9)}, [2, 3])],
        [
            allocation(2, 110, 1_000),
            allocation(3, 120, 36),
            allocation(2, 190, -1_000),
            allocation(1, 300, -36),
        ],
    )
    assert figures(trace) == {"cpu": (36, 36, 36)}
    assert outputs(replay_memory(trace)) == [("aten::mm", "c ? 36")]


def test_what_no_operation_has_allocated_is_said_and_does_not_count() -> None:
    trace = step(
        [operation("aten::exp", 100, 200, {1: floats(9)}, [2])],
        [allocation(2, 110, 36), allocation(3, 300, 500), allocation(4, 11_000, 1)],
    )
    assert figures(trace) == {"cpu": (36, 36, 36)}
    assert replay_memory(trace).unowned_bytes == 500


def test_what_was_recorded_around_the_step_is_no_part_of_it() -> None:
    # Of a recording that is shared with a longer step.
    trace = step(
        [
            operation("before", -200, -100, {}, [1]),
            operation("aten::exp", 100, 200, {1: floats(9)}, [2]),
            operation("aten::add_", 300, 400, {1: floats(9)}, [1]),
            operation("after", 10_100, 10_200, {2: floats(9)}, [3]),
        ],
        [
            allocation(1, -150, 36),
            allocation(2, 150, 40),
            allocation(3, 10_150, 1_000),
        ],
    )
    # 40, and in place of adding in place, 36 more.
    assert figures(trace) == {"cpu": (40, 76, 40)}
    assert [name for name, _ in outputs(replay_memory(trace))] == [
        "aten::exp",
        "aten::add_",
    ]
    assert replay_memory(trace).unowned_bytes == 0


def test_devices_have_figures_of_their_own() -> None:
    trace = step(
        [
            operation("aten::exp", 100, 200, {1: floats(25)}, [2]),
            operation("aten::copy_", 300, 400, {3: floats(10)}, [3, 4]),
            operation("aten::add_", 500, 600, {5: floats(10)}, [5]),
        ],
        [allocation(2, 150, 100), allocation(4, 350, 512, "cuda:0")],
        devices={1: "cpu", 3: "cuda:0", 5: "cuda:1"},
        tensors={3: floats(10), 5: floats(10)},
    )
    assert figures(trace) == {
        "cpu": (100, 100, 100),
        "cuda:0": (512, 552, 512),
        "cuda:1": (0, 40, 0),
    }
    assert [each.operation for each in replay_memory(trace).devices] == [
        "aten::exp",
        "aten::copy_",
        "",
    ]


def test_a_step_of_nothing() -> None:
    assert replay_memory(step([])) == MemoryReplay(3, (), ())


# Without in-place writes


def test_a_write_in_place_would_need_both_buffers_while_it_runs() -> None:
    trace = step(
        [
            operation("aten::exp", 100, 200, {1: floats(25)}, [2]),
            operation("aten::relu_", 300, 400, {2: floats(25)}, [2]),
            operation("aten::sin", 500, 600, {2: floats(25)}, [3]),
        ],
        [allocation(2, 150, 100), allocation(3, 550, 90)],
    )
    assert figures(trace) == {"cpu": (190, 200, 190)}


def test_the_new_buffer_of_what_was_there_before_stays() -> None:
    trace = step(
        [
            operation("aten::add_", 100, 200, {1: floats(25)}, [1]),  # 100
            operation("aten::exp", 300, 400, {1: floats(25)}, [2]),  # 130
            operation("aten::mul_", 500, 600, {1: floats(25)}, [1]),  # 230, 130
            operation("aten::sin", 700, 800, {1: floats(25)}, [3]),  # 240
        ],
        [allocation(2, 350, 30), allocation(3, 750, 110)],
        devices={1: "cpu"},
        tensors={1: floats(25)},
    )
    assert figures(trace) == {"cpu": (140, 240, 140)}


def test_what_was_there_before_is_freed_with_its_new_buffer() -> None:
    trace = step(
        [
            operation("aten::add_", 100, 200, {1: floats(25)}, [1]),
            operation("aten::exp", 300, 400, {2: floats(25)}, [3]),
        ],
        [allocation(1, 250, -128), allocation(3, 350, 100)],
    )
    # The size of the block is known when it is freed.
    assert figures(trace) == {"cpu": (100, 128, 100)}


def test_of_a_part_that_is_written_the_whole_block_would_be_new() -> None:
    trace = step(
        [
            operation("aten::exp", 100, 200, {1: floats(25)}, [2]),
            operation("aten::zero_", 300, 400, {2: floats(5)}, [2]),
            operation("aten::zero_", 500, 600, {3: floats(5)}, [3]),
        ],
        [allocation(2, 150, 100)],
        devices={3: "cpu"},
        tensors={3: floats(60)},  # as it was first taken
    )
    assert figures(trace) == {"cpu": (100, 100 + 240, 100)}
    assert outputs(replay_memory(trace))[1:] == [("aten::zero_", "i float32[5] 20")] * 2


def test_an_operation_that_frees_what_it_wrote_lets_go_of_both() -> None:
    trace = step(
        [
            operation("aten::exp", 100, 200, {1: floats(25)}, [2]),
            operation(NODE + "AddBackward0", 300, 400, {2: floats(25)}, [2, 3]),
        ],
        [allocation(2, 150, 100), allocation(2, 350, -100), allocation(3, 360, 150)],
    )
    assert figures(trace) == {"cpu": (150, 200, 250)}


def test_operations_without_duration() -> None:
    trace = step(
        [
            operation("aten::exp", 100, 100, {1: floats(25)}, [2]),
            operation("aten::relu_", 200, 200, {2: floats(25)}, [2]),
            operation("aten::sin", 300, 300, {1: floats(25)}, [3]),
        ],
        [allocation(2, 100, 100), allocation(3, 300, 60)],
    )
    assert figures(trace) == {"cpu": (160, 200, 160)}


@st.composite
def traces(draw: st.DrawFn) -> tuple[StepTrace, int]:
    """A trace, and the bytes of what is created and alive at its highest."""
    trace = step([], devices={1: "cpu", 2: "cpu"})
    trace.tensors.update({1: floats(10), 2: floats(3)})
    alive: dict[int, int] = {}
    highest = 0
    for number in range(draw(st.integers(0, 12))):
        start_ns, block = 100 * number, number + 10
        writes = draw(st.lists(st.sampled_from([1, 2, *alive]), max_size=3))
        takes = {each: floats(2) for each in writes}
        if draw(st.booleans()):
            size_bytes = draw(st.integers(1, 50))
            trace.allocations.append(allocation(block, start_ns + 20, size_bytes))
            alive[block] = size_bytes
            writes.append(block)
        trace.operations.append(operation("op", start_ns, start_ns + 50, takes, writes))
        highest = max(highest, sum(alive.values()))
        for freed in draw(st.lists(st.sampled_from([0, *alive]), unique=True)):
            if freed in alive:
                size_bytes = alive.pop(freed)
                trace.allocations.append(allocation(freed, start_ns + 70, -size_bytes))
    return trace, highest


@given(traces())
def test_bounds_of_the_figures(example: tuple[StepTrace, int]) -> None:
    trace, highest = example
    sizes = {1: 40, 2: 12}
    sizes |= {a.block: a.size_bytes for a in trace.allocations if a.size_bytes > 0}
    in_place = sum(
        sizes[block]
        for each in trace.operations
        for block in each.writes
        if block in each.takes
    )
    replay = replay_memory(trace)
    rows_bytes = sum(created_bytes(row) for row in replay.rows)
    for device in replay.devices:
        assert device.as_run_bytes == highest
        assert device.as_run_bytes <= device.without_inplace_bytes
        assert device.as_run_bytes <= device.without_freeing_bytes
        # Every write in place is one more output; these can be the larger part.
        at_most = device.without_freeing_bytes + in_place
        assert device.without_inplace_bytes <= at_most
        assert device.without_freeing_bytes == rows_bytes
    assert replay.devices or not rows_bytes
    assert CODEC.decode(json.loads(json.dumps(CODEC.encode(replay)))) == replay


# Outputs


def test_outputs_say_what_they_are() -> None:
    trace = step(
        [
            operation("aten::exp", 100, 200, {1: floats(25)}, [2, 3]),
            operation(
                "aten::expand",
                300,
                350,
                {2: floats(25)},
                views={2: TensorType("float32", (4, 25))},
            ),
            operation("aten::select", 400, 450, {2: floats(25)}, views={2: floats(3)}),
            operation("aten::view", 500, 550, {2: floats(25)}, views={2: None}),
            operation("aten::t_", 600, 650, {2: floats(25)}, [2], views={2: floats(5)}),
            operation("aten::equal", 700, 750, {2: floats(25)}),
        ],
        [allocation(2, 150, 128), allocation(3, 160, 16)],
        tensors={2: floats(25)},
    )
    replay = replay_memory(trace)
    # As large as the block, the allocator's rounding included; a view repeats nothing.
    assert outputs(replay) == [
        ("aten::exp", "c float32[25] 128, c ? 16"),
        ("aten::expand", "v float32[4, 25] 128"),
        ("aten::t_", "v float32[5] 20"),
        ("aten::select", "v float32[3] 12"),
        ("aten::view", "v ? 0"),
    ]
    assert [row.size_bytes for row in replay.rows] == [144, 128, 20, 12, 0]
    assert [created_bytes(row) for row in replay.rows] == [144, 0, 0, 0, 0]


def test_sizes_of_all_dtypes_of_torch() -> None:
    dtypes = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        assert TensorType(name, (2, 3)).size_bytes == 6 * dtype.itemsize, name


def test_operations_that_are_alike_are_one_row() -> None:
    spans = [
        ModuleSpan("Net", "Net", "forward", 100, 900),
        ModuleSpan("Net.a", "Linear", "forward", 200, 400),
    ]
    trace = step(
        [
            operation("aten::exp", 110, 120, {1: floats(2)}, [2]),
            operation("aten::exp", 210, 220, {1: floats(2)}, [3]),
            operation("aten::exp", 230, 240, {1: floats(2)}, [4]),
            operation("aten::exp", 250, 260, {1: floats(2)}, [5]),
            operation("aten::exp", 410, 420, {1: floats(2)}, [6]),
        ],
        [
            allocation(2, 115, 8),
            allocation(3, 215, 8),
            allocation(4, 235, 8),
            allocation(5, 255, 12),
            allocation(6, 415, 8),
        ],
        modules=spans,
    )
    replay = replay_memory(trace)
    assert [(row.module, row.size_bytes, row.times) for row in replay.rows] == [
        ("Net.a", 12, 1),
        ("Net", 8, 2),
        ("Net.a", 8, 2),
    ]
    assert [row.total_bytes for row in replay.rows] == [12, 16, 16]


def test_nodes_belong_to_the_module_that_runs_when_they_begin() -> None:
    # Hooks on the nodes begin and end the spans, inside of the operations.
    spans = [
        ModuleSpan("(backward outside modules)", "", "backward", 90, 500),
        ModuleSpan("Net.b", "ReLU", "backward", 115, 215),
        ModuleSpan("Net.a", "Linear", "backward", 215, 330),
    ]
    names = ["SumBackward0", "ReluBackward0", "MmBackward0", "TBackward0"]
    trace = step(
        [
            operation(
                NODE + name,
                start_ns,
                start_ns + 90,
                {},
                [number],
                node=number,
                node_start_ns=start_ns + 20,
            )
            for number, name in enumerate(names, 1)
            for start_ns in [100 * number - 90 + 90 * (number == 4)]
        ],
        [allocation(number, 100 * number - 65, 100 - number) for number in (1, 2, 3)]
        + [allocation(4, 420, 1)],
        modules=spans,
    )
    found = [(row.operation, row.module) for row in replay_memory(trace).rows]
    assert found == [
        ("SumBackward0", "(outside modules)"),
        ("ReluBackward0", "Net.b"),
        ("MmBackward0", "Net.a"),
        ("TBackward0", "(backward outside modules)"),
    ]


def test_what_other_threads_do_belongs_to_no_module_except_for_nodes() -> None:
    spans = [ModuleSpan("Net", "Net", "backward", 100, 900)]
    trace = step(
        [
            operation("aten::exp", 110, 120, {}, [1], thread=99),
            operation(NODE + "A", 210, 220, {}, [2], thread=99, node=5),
        ],
        [allocation(1, 115, 8), allocation(2, 215, 4)],
        modules=spans,
    )
    assert [(row.module, row.phase) for row in replay_memory(trace).rows] == [
        ("(outside modules)", "outside"),
        ("Net", "backward"),
    ]


# Files


DAMAGED: list[Callable[[dict[str, Any]], object]] = [
    lambda content: content.pop("step"),
    lambda content: content.update(step="3"),
    lambda content: content.update(unowned_bytes=True),
    lambda content: content.update(rows=None),
    lambda content: content["rows"][0].update(phase="sideways"),
    lambda content: content["rows"][0].update(outputs=[["x", 3]]),
    lambda content: content["rows"][0].update(outputs=[["c", 3, "float32", 4]]),
    lambda content: content["rows"][0].update(outputs=[["c"]]),
    lambda content: content["devices"][0].update(as_run_bytes=1.5),
    lambda content: content["devices"][0].update(module=None),
]


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_is_no_replay_is_refused(damage: Callable[[Any], object]) -> None:
    output = Output("c", floats(2), 8)
    replay = MemoryReplay(
        3,
        (DeviceReplay("cpu", 1, 2, 3, "Net", "forward", "aten::exp"),),
        (OutputRow("Net", "forward", "aten::exp", (output,), 2),),
    )
    content = CODEC.encode(replay)
    damage(content)
    with pytest.raises(DamageError):
        CODEC.decode(content)


@pytest.mark.parametrize("content", [None, [], 3, "text"])
def test_what_is_no_object_is_refused(content: Any) -> None:
    with pytest.raises(DamageError):
        CODEC.decode(content)


# Recorded


def recorded(function: Callable[[], object]) -> MemoryReplay:
    """The replay of a call."""
    step = MemoryStep()
    assert step.begin()
    kept = function()
    step.end(1)
    del kept
    replay = step.replay()
    assert replay is not None
    return replay


def recorded_figures(replay: MemoryReplay) -> tuple[int, int, int]:
    (device,) = replay.devices
    assert device.device == "cpu"
    assert (
        sum(created_bytes(row) for row in replay.rows) == device.without_freeing_bytes
    )
    return (
        device.as_run_bytes,
        device.without_inplace_bytes,
        device.without_freeing_bytes,
    )


@pytest.fixture
def vectors() -> tuple[Tensor, Tensor, Tensor]:
    x, y, z = (torch.ones(1024) for _ in range(3))
    return x, y, z


def test_outer_products_and_their_sums(vectors: tuple[Tensor, Tensor, Tensor]) -> None:
    x, y, z = vectors
    replay = recorded(lambda: torch.outer(x, y).sum(1) + torch.outer(y, z).sum(1) + z)
    # A product has 4096 KB, everything else 4. Python lets go of a product when it is
    # summed up, so the most there are is a sum, the other product and its sum. All
    # together, two products and two sums of rows, and two of vectors.
    assert recorded_figures(replay) == (4104 * KB, 4104 * KB, 8208 * KB)
    (device,) = replay.devices
    assert device[4:7] == ("(outside modules)", "outside", "aten::sum")
    assert outputs(replay)[:4] == [
        ("aten::outer", f"c float32[1024, 1024] {4096 * KB}"),
        ("aten::outer", f"c float32[1024, 1024] {4096 * KB}"),
        ("aten::sum", f"c float32[1024] {4 * KB}"),
        ("aten::sum", f"c float32[1024] {4 * KB}"),
    ]
    assert replay.unowned_bytes == 0


def test_outer_products_in_place(vectors: tuple[Tensor, Tensor, Tensor]) -> None:
    x, y, z = vectors

    def in_place() -> Tensor:
        a = torch.outer(x, y)
        a += torch.outer(y, z)
        a.relu_()
        return a.sum(1)

    replay = recorded(in_place)
    # Both products; a third for the sum; without freeing, two and the sum of rows.
    assert recorded_figures(replay) == (8192 * KB, 12288 * KB, 8196 * KB)
    whole = f"float32[1024, 1024] {4096 * KB}"
    assert outputs(replay)[:4] == [
        ("aten::outer", f"c {whole}"),
        ("aten::outer", f"c {whole}"),
        ("aten::add_", f"i {whole}"),
        ("aten::relu_", f"i {whole}"),
    ]


def test_views_of_a_recording() -> None:
    x = torch.ones(64)

    def views() -> Tensor:
        y = x.exp()
        matrix = y.view(4, 16)
        y.sum()  # of the tensor that was there, in between
        columns = matrix.t()
        part = columns[2:]
        part.unsqueeze_(0)
        return part.sin()

    replay = recorded(views)
    found = {name: text for name, text in outputs(replay) if "v" in text}
    assert found == {
        "aten::view": "v float32[4, 16] 256",
        "aten::t": "v float32[16, 4] 256",
        "aten::slice": "v float32[14, 4] 224",
        "aten::unsqueeze_": "v float32[1, 14, 4] 224",
    }


def test_a_training_step() -> None:
    net = nn.Linear(64, 32, bias=False)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, foreach=False)
    x = torch.ones(16, 64)

    def train() -> Tensor:
        net.weight.grad = None
        loss: Tensor = net(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    train()
    net.weight.grad = None
    replay = recorded(train)
    # The output has 2048 bytes, and goes when it is summed up; the loss and its
    # gradient 4 each, the gradient of the weight 8192, and so would a new weight. The
    # gradient of the loss is gone by then.
    assert recorded_figures(replay) == (
        4 + 4 + 8192,
        4 + 8192 + 8192,
        2048 + 4 + 4 + 8192,
    )
    places = {row.operation: (row.module, row.phase) for row in replay.rows}
    assert places["aten::linear"] == ("Linear", "forward")
    assert places["aten::sum"] == ("(outside modules)", "outside")
    assert places["MmBackward0"] == ("Linear", "backward")
    assert places["aten::add_"] == ("(optimizer) SGD", "optimizer")
    (device,) = replay.devices
    assert device[4:7] == ("Linear", "backward", "MmBackward0")
    found = dict(outputs(replay))
    assert found["aten::add_"] == "i float32[32, 64] 8192"
    assert found["TBackward0"] == "v float32[32, 64] 8192"


def test_operations_on_lists_write_each_of_them() -> None:
    parameters = [torch.ones(64), torch.ones(32)]
    replay = recorded(lambda: torch._foreach_add_(parameters, 1.0))
    assert outputs(replay) == [
        ("aten::_foreach_add_", "i float32[64] 256, i float32[32] 128")
    ]
    assert recorded_figures(replay) == (0, 256 + 128, 0)


def test_layers_of_a_model_are_told_apart() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(2, 5, 16)

    def train() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    train()
    replay = recorded(train)
    as_run, without_inplace, without_freeing = recorded_figures(replay)
    assert 0 < as_run < without_inplace
    assert as_run < without_freeing
    places = {(row.module, row.phase) for row in replay.rows}
    for name in ("self_attn", "linear1", "norm2"):
        for phase in ("forward", "backward"):
            for number in range(2):
                assert (f"TransformerEncoder.layers.{number}.{name}", phase) in places
    nodes = {
        (row.module, row.operation)
        for row in replay.rows
        if row.operation in ("NativeLayerNormBackward0", "ReluBackward0")
    }
    # Where a node is the first of its module, as everywhere here, or its only one.
    assert nodes == {
        (f"TransformerEncoder.layers.{number}{module}", name)
        for number in range(2)
        for module, name in (
            (".norm1", "NativeLayerNormBackward0"),
            (".norm2", "NativeLayerNormBackward0"),
            ("", "ReluBackward0"),
        )
    }
