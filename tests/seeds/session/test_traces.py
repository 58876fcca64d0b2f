"""What traces of steps show."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import record_function  # noqa: F401 - of a step that is text
from torch.utils.checkpoint import checkpoint

from tests.traces import Trace
from torchprof_hooks import ProfilerHook

ENGINE = "autograd::engine::evaluate_function: "
LEAF = ENGINE + "torch::autograd::AccumulateGrad"


def trace(step: Callable[[], object], directory: Path, **options: Any) -> Path:
    """The trace of the second of two steps."""
    with ProfilerHook(1, output_dir=directory, **options) as hook:
        for _ in range(2):
            step()
            hook.step()
    (path,) = hook.paths
    return path


def read(step: Callable[[], object], directory: Path, **options: Any) -> Trace:
    return Trace(trace(step, directory, **options))


# A step computed by hand


class ByHand:
    def __init__(self) -> None:
        self.w = torch.ones(3, requires_grad=True)
        self.x = torch.ones(3)

    def step(self) -> None:
        (self.w * self.x).exp().sum().backward()
        assert self.w.grad is not None
        with torch.no_grad():
            self.w -= self.w.grad
        self.w.grad = None


def test_arrows_of_a_step_computed_by_hand(tmp_path: Path) -> None:
    # w and x were there before the step; what exp returned is used by its backward.
    assert read(ByHand().step, tmp_path).flows() == [
        ("aten::mul", "aten::exp", "float32[3]"),
        ("aten::exp", "aten::sum", "float32[3]"),
        ("aten::sum", "aten::ones_like", "float32[]"),
        ("aten::ones_like", ENGINE + "SumBackward0", "float32[]"),
        ("aten::exp", ENGINE + "ExpBackward0", "float32[3]"),
        (ENGINE + "SumBackward0", ENGINE + "ExpBackward0", "gradient"),
        (ENGINE + "ExpBackward0", ENGINE + "MulBackward0", "gradient"),
        (ENGINE + "MulBackward0", LEAF, "gradient"),
        (ENGINE + "MulBackward0", "aten::sub_", "float32[3]"),
    ]


def test_memory_of_a_step_computed_by_hand(tmp_path: Path) -> None:
    path = trace(ByHand().step, tmp_path, show_memory=True)
    shapes = [(3,), (3,), (), (), (3,), (3,)]
    found = objects(path)
    assert [tuple(blocks["shape"]) for blocks, _ in found] == shapes
    assert all(block["dtype"] == "float32" for block, _ in found)
    assert [block["bytes"] for block, _ in found] == [12, 12, 4, 4, 12, 12]
    # Product and loss go with the graph; the last is w.grad, which is let go of.
    assert all(phases in ("NOD", "NOO") for _, phases in found)
    counters = [event for event in Trace(path).events if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"cpu memory"}
    in_use = [event["args"]["bytes in use"] for event in counters]
    assert in_use[0] == 12
    assert max(in_use) <= sum([12, 12, 4, 4, 12, 12])


def objects(path: Path) -> list[tuple[dict[str, Any], str]]:
    """The first snapshot of each object, and its phases."""
    snapshots: dict[str, dict[str, Any]] = {}
    phases: dict[str, str] = {}
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] in "NOD":
            phases[event["id"]] = phases.get(event["id"], "") + event["ph"]
            if event["ph"] == "O":
                snapshots.setdefault(event["id"], event["args"]["snapshot"])
    return [(snapshot, phases[number]) for number, snapshot in snapshots.items()]


# Arrows of single operations


X, MATRIX = torch.ones(3), torch.ones(4, 3)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.exp() * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 2


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (
            "MATRIX.exp().t().view(3, 2, 2).sin()",
            ["exp t [4, 3]", "exp view [3, 4]", "exp sin [3, 2, 2]"],
        ),
        (
            "y = X.exp(); y.add_(1); y.sin(); torch.add(X, X, out=y); y.cos()",
            ["exp add_ [3]", "add_ sin [3]", "add_ add [3]", "add cos [3]"],
        ),
        (
            "ab = [X.exp(), X.sin()]; torch._foreach_add_(ab, 1); torch.cat(ab)",
            ["exp _foreach_add_ [3]", "sin _foreach_add_ [3]"]
            + ["_foreach_add_ cat [3]"] * 2,
        ),
        ("for _ in range(3): X.exp().sum()", ["exp sum [3]"] * 3),
        (
            "with record_function('all'):\n y = X.exp()\n"
            " with record_function('a part'): y.sin()",
            ["exp sin [3]"],
        ),
        (
            "Double.apply(torch.ones(3, requires_grad=True)).sin()",
            ["ones Double [3]", "Double sin [3]"],
        ),
    ],
    ids=[
        *("views", "in place", "lists", "at the same address"),
        *("marked", "custom"),
    ],
)
def test_arrows_of_operations(step: str, expected: list[str], tmp_path: Path) -> None:
    found = [
        f"{producer} {consumer} {carries}".replace("aten::", "").replace("float32", "")
        for producer, consumer, carries in read(
            lambda: exec(step, dict(globals())), tmp_path
        ).flows()
    ]
    assert found == expected


def test_gradients_that_nodes_hand_on_go_along_the_graph(tmp_path: Path) -> None:
    # The backward of an addition returns what it is given, to both.
    a, b = (torch.ones(3, requires_grad=True) for _ in range(2))

    def step() -> None:
        a.grad = b.grad = None
        torch.cat([a.exp() + b.sin(), b]).sum().backward()

    found = [flow[:2] for flow in read(step, tmp_path).flows() if flow[2] == "gradient"]
    assert sorted(found) == sorted(
        [
            (ENGINE + "SumBackward0", ENGINE + "CatBackward0"),
            (ENGINE + "CatBackward0", ENGINE + "AddBackward0"),
            (ENGINE + "AddBackward0", ENGINE + "SinBackward0"),
            (ENGINE + "AddBackward0", ENGINE + "ExpBackward0"),
            (ENGINE + "ExpBackward0", LEAF),
            (ENGINE + "SinBackward0", LEAF),
        ]
    )


# Modules


class Block(nn.Module):
    def __init__(self, saves_memory: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.saves_memory = saves_memory

    def forward(self, x: Tensor) -> Tensor:
        if self.saves_memory:
            y: Tensor = checkpoint(self.linear, x, use_reentrant=False)
        else:
            y = self.linear(x)
        return y.relu()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plain = Block(saves_memory=False)
        self.saving = Block(saves_memory=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.saving(self.plain(x))
        return out


def test_modules_in_forward_backward_and_recompute(tmp_path: Path) -> None:
    net, x = Net(), torch.ones(2, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step() -> None:
        F.mse_loss(net(x), x).backward()
        optimizer.step()

    assert read(step, tmp_path).slices("modules") == [
        (0, "step", "step 2"),
        (1, "forward", "Net"),
        (2, "forward", "Net.plain"),
        (3, "forward", "Net.plain.linear"),
        (2, "forward", "Net.saving"),
        (3, "forward", "Net.saving.linear"),
        (1, "profiler", "(profiler overhead)"),
        (1, "backward", "(backward outside modules)"),
        (2, "backward", "(autograd engine)"),
        (2, "backward", "Net backward"),
        (3, "backward", "Net.saving backward"),
        (4, "backward", "Net.saving.linear backward"),
        (5, "recompute", "Net.saving.linear recompute"),
        (3, "backward", "Net.plain backward"),
        (4, "backward", "Net.plain.linear backward"),
        (2, "backward", "(autograd engine)"),
        (1, "optimizer", "(optimizer) SGD"),
    ]


# Whole models


@pytest.fixture
def transformer() -> Callable[[], None]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(2, 5, 16)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def test_every_arrow_and_every_object_has_its_end(
    transformer: Callable[[], None], tmp_path: Path
) -> None:
    path = trace(transformer, tmp_path, show_memory=True)
    events = json.loads(path.read_text())["traceEvents"]
    ends = Counter(
        (event["ph"], event["id"]) for event in events if event.get("cat") == "dataflow"
    )
    starts = [number for phase, number in ends if phase == "s"]
    assert len(starts) > 200
    assert all(ends["s", number] == ends["f", number] == 1 for number in starts)
    assert len(ends) == 2 * len(starts)
    assert len(Trace(path).flows()) == len(starts)
    assert {phases for _, phases in objects(path)} <= {"NOD", "NOO"}
