"""What callbacks are told of a function call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.functions import (
    CUBE,
    Cube,
    FunctionKeeper,
    SumAndDifference,
    Tensors,
    x,
)
from torchprof_hooks import FunctionCall, FunctionHook, add_hook, delete_hook


def plain(*size: int) -> torch.Tensor:
    return x(*size).detach()


def fill(tensor: torch.Tensor) -> None:
    tensor[0] = 1


class Forwards(FunctionHook):
    """Ids of the tensors that forward callbacks were given, and the nodes known."""

    def __init__(self) -> None:
        self.given: list[tuple[str, list[int]]] = []
        self.nodes: list[tuple[str, ...]] = []

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        self.given.append(("pre", list(map(id, in_data))))
        self.nodes.append(function.node_names)

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        self.given.append(("post", list(map(id, in_data))))
        self.nodes.append(function.node_names)


# Inputs


@pytest.mark.parametrize("everywhere", [True, False])
def test_in_data_are_the_inputs_themselves(everywhere: bool) -> None:
    first, weight, bias = plain(), plain(5, 3), plain(5)
    hook = Forwards()
    if everywhere:
        with hook:
            F.linear(first, weight, bias=bias)
    else:
        add_hook(F.linear, hook)
        F.linear(first, weight, bias=bias)
        delete_hook(F.linear, "FunctionHook")

    given = list(map(id, (first, weight, bias)))
    assert hook.given == [("pre", given), ("post", given)]


def test_lists_of_tensors_are_flattened() -> None:
    a, b, c = plain(), plain(), plain(1)
    with Forwards() as hook:
        torch.stack([a, b])
        torch.cat(tensors=(b, a))
        a[c.new_zeros(1, dtype=torch.long)]

    stack, cat = [id(a), id(b)], [id(b), id(a)]
    assert [ids for when, ids in hook.given if when == "pre"][:2] == [stack, cat]
    # Values that are no tensors are left out; index tensors are inputs.
    assert len(hook.given[-1][1]) == 2


def one_call(work: Callable[[], object]) -> FunctionCall:
    """What the callbacks of the one function that `work` calls are told of it."""
    with FunctionKeeper() as hook:
        work()
    first, last = hook.seen
    assert first.call is last.call
    return first.call


def test_what_a_call_is_described_by() -> None:
    call = one_call(lambda: F.linear(x(), x(5, 3), x(5)))

    assert (call.name, call.label, call.module_path) == ("linear", "linear", "")
    assert call.in_data == (None, None, None)  # all gone by now
    assert str(call.input_shapes) == "((2, 3), (5, 3), (5,))"
    assert repr(call) == (
        "FunctionCall(name='linear', module_path='', "
        "input_shapes=((2, 3), (5, 3), (5,)), "
        "node_names=('TBackward0', 'AddmmBackward0'))"
    )


# Nodes


def test_node_names_are_known_when_the_call_has_returned() -> None:
    targets = torch.tensor([0, 1])
    with Forwards() as hook:
        F.cross_entropy(x(), targets)

    assert hook.nodes == [(), ("LogSoftmaxBackward0", "NllLossBackward0")]


HIDDEN: torch.Tensor = x() * 1  # may be changed in place


@pytest.mark.parametrize(
    ("work", "nodes"),
    [
        (lambda: SumAndDifference.apply(x(), x()), ("SumAndDifferenceBackward",)),
        (lambda: x(4).split(2), ("SplitBackward0",)),
        (lambda: x().max(1), ("MaxBackward0",)),
        (lambda: fill(HIDDEN), ("torch::autograd::CopySlices",)),
        (lambda: x().view(3, 2), ("ViewBackward0",)),
        (lambda: x()[0], ("SelectBackward0",)),
        (lambda: HIDDEN.mul_(2), ("MulBackward0",)),
        (lambda: x().tolist(), ()),
    ],
    ids=["Function", "split", "max", "None", "view", "index", "in-place", "no tensor"],
)
def test_node_names_whatever_is_returned(
    work: Callable[[], object], nodes: tuple[str, ...]
) -> None:
    with FunctionKeeper() as hook:
        work()

    assert hook.seen[-1].call.node_names == nodes


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode, torch.enable_grad]
)
def test_functions_without_gradients_are_seen_and_make_no_nodes(mode: Any) -> None:
    with mode(), FunctionKeeper() as hook:
        Cube.apply(x())

    assert hook.events[1:-1] == CUBE
    nodes = ("CubeBackward",) if mode is torch.enable_grad else ()
    assert hook.only("post Cube").call.node_names == nodes


# Where it is called


class Net(nn.Module):
    """Calls a function, a module that calls one, and a custom Function."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Cube.apply(self.layers(x.exp()))
        return result


def test_module_path_is_the_module_that_calls() -> None:
    net = Net()
    with FunctionKeeper() as hook:
        net(x()).sum().backward()

    paths = {s.call.name: s.call.module_path for s in hook.seen if "back" not in s[0]}
    expected = {"exp": "Net", "relu": "Net.layers.0", "Cube": "Net", "mul": "Net"}
    assert paths == {**expected, "sum": ""}
    in_backward = {s.call.name: s.call.module_path for s in hook.seen if "back" in s[0]}
    assert in_backward == {name: paths[name] for name in ("exp", "relu", "Cube", "sum")}
