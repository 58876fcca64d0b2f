from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.functions import (
    Cube,
    FunctionKeeper,
    FunctionRecorder,
    Runs,
    SumAndDifference,
    backward,
    backward_pres,
    forward,
    x,
)
from tests.helpers import in_thread
from tests.seeds.hook_places import WAYS, Run, by_grad
from torchprof_hooks import FunctionCall, FunctionHook
from torchprof_hooks.function_hook import Tensors

TARGETS = torch.tensor([0, 1])


def net(tensor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """linear makes two nodes, cross_entropy as well."""
    return F.cross_entropy(F.linear(tensor.exp(), weight, weight[0]), TARGETS)


BACKWARD = backward("cross_entropy", "linear", "exp")
#: The same, where nobody has seen the functions being called.
NODES = backward(
    *("NllLossBackward0", "LogSoftmaxBackward0"),
    *("AddmmBackward0", "TBackward0", "ExpBackward0"),
)


def by_node(events: list[str]) -> list[str]:
    """Without what getitem's node does, which comes where the engine likes."""
    return [e for e in events if "getitem" not in e and "Select" not in e]


# Which functions have been seen


@WAYS
def test_a_graph_of_an_earlier_with_of_the_same_hook(run: Run) -> None:
    tensor, weight, hook = x(), x(3, 3), FunctionKeeper()
    with hook:
        loss = net(tensor, weight)
    hook.taken()
    hook.seen.clear()
    with hook:
        run(loss, [tensor])

    assert by_node(hook.events[1:-1]) == BACKWARD
    assert hook.only("backward pre linear").call.input_shapes == ((2, 3), (3, 3), (3,))


@WAYS
@pytest.mark.parametrize("other_hook", [False, True])
def test_a_graph_that_was_built_outside_goes_by_its_nodes(
    run: Run, other_hook: bool
) -> None:
    tensor, weight = x(), x(3, 3)
    if other_hook:
        with FunctionRecorder("other"):
            loss = net(tensor, weight)
    else:
        loss = net(tensor, weight)
    with FunctionKeeper() as hook:
        run(loss, [tensor])

    # grad() runs only what leads to the input, and not what leads to the weight.
    unasked = "TBackward0" if run is by_grad else "none"
    expected = [e for e in NODES if not e.endswith(f" {unasked}")]
    assert by_node(hook.events[1:-1]) == expected
    seen = hook.only("backward pre AddmmBackward0")
    assert (seen.in_data, seen.out_grad) == ([], [(2, 3)])
    assert (seen.call.input_shapes, seen.call.module_path) == ((), "")
    assert seen.call.node_names == ("AddmmBackward0",)


def test_a_backward_after_the_hook_was_left_or_in_another_thread_is_silent() -> None:
    with FunctionRecorder() as hook:
        losses = [x().exp().sum() for _ in range(2)]
        hook.taken()
        in_thread(losses[0].backward)
        assert hook.taken() == []
    hook.taken()
    losses[1].backward()

    assert hook.events == []


# What callbacks are told


def test_what_backward_callbacks_are_told() -> None:
    tensor, weight, bias = x(), x(5, 3), x(5)
    with FunctionKeeper() as hook:
        F.linear(tensor, weight, bias).sum().backward()

    forward_call = hook.only("post linear").call
    for event in backward("linear"):
        seen = hook.only(event)
        assert seen.call is forward_call
        assert seen.in_data == [(2, 3), (5, 3), (5,)]
    assert hook.only("backward pre linear").out_grad == [(2, 5)]
    assert hook.only("backward post linear").out_grad == [None]  # gone by then
    assert forward_call.node_names == ("TBackward0", "AddmmBackward0")


def test_out_grad_are_the_gradients_themselves() -> None:
    class Keeps(FunctionHook):
        def backward_preprocess(
            self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
        ) -> None:
            assert out_grad[0] is not None
            found[function.name] = out_grad[0].tolist()

    found: dict[str, object] = {}
    tensor = torch.tensor([2.0, 3.0], requires_grad=True)
    with Keeps():
        ((tensor * 5) ** 2).sum().backward()

    # d/dy sum(y ** 2) = 2 * y, with y = 10 and 15.
    assert found == {"sum": 1.0, "pow": [1.0, 1.0], "mul": [20.0, 30.0]}


def split() -> Any:
    first, _, third = x(6).split(2)
    return first.sum() + third.sum()


def sort() -> Any:
    return x().sort(1)[0].sum()


def meshgrid() -> Any:
    """A chain of nodes for each of its outputs."""
    rows, columns = torch.meshgrid(x(2), x(3), indexing="ij")
    return rows.sum() + columns.sum()


def one_of_two() -> Any:
    return SumAndDifference.apply(x(), x())[0].sum()


def both_of_two() -> Any:
    total, difference = SumAndDifference.apply(x(), x())
    return total.sum() + difference.sum()


@pytest.mark.parametrize(
    ("make", "name", "out_grad"),
    [
        (split, "split", [(2,), None, (2,)]),
        (sort, "sort", [(2, 3)]),
        # Those of the node that runs first: the others are not known yet.
        (meshgrid, "meshgrid", [(2, 3)]),
        (one_of_two, "SumAndDifference", [(2, 3), None]),
        (both_of_two, "SumAndDifference", [(2, 3), (2, 3)]),
    ],
    ids=["split", "sort", "several nodes", "one of two", "both of two"],
)
def test_out_grad_of_several_outputs(make: Any, name: str, out_grad: Any) -> None:
    with FunctionKeeper() as hook:
        make().backward()

    assert hook.only(f"backward pre {name}").out_grad[: len(out_grad)] == out_grad


# Which functions have a backward, and how often


def test_functions_that_make_no_nodes_have_no_backward() -> None:
    with FunctionRecorder() as hook:
        tensor = x()
        with torch.no_grad():
            tensor.exp()
        (tensor.exp().detach() + tensor.max(1).indices[:, None]).sum()
        (tensor.sin() + tensor.round().detach()).sum().backward()

    assert backward_pres(hook.events) == ["sum", "add", "sin"]


def test_only_what_is_asked_for_has_a_backward() -> None:
    first, second = x(), x()
    with FunctionRecorder() as hook:
        hidden = first.exp()
        loss = (hidden.sin() + second.cos()).sum()
        hook.taken()
        torch.autograd.grad(loss, hidden, retain_graph=True)
        assert hook.taken() == backward("sum", "add", "sin")
        torch.autograd.grad(loss, second, retain_graph=True)
        assert hook.taken() == backward("sum", "add", "cos")
        loss.backward(inputs=[first])
        assert hook.taken() == backward("sum", "add", "sin", "exp")


@WAYS
def test_a_retained_graph_has_its_callbacks_each_time(run: Run) -> None:
    tensor = x()
    outside = tensor.exp().sum()
    with FunctionRecorder() as hook:
        inside = Cube.apply(tensor).sum()
        hook.taken()
        for loss in (inside, outside):
            torch.autograd.backward(loss, retain_graph=True)
            run(loss, [tensor])
        assert hook.events == [
            *backward("sum", "Cube") * 2,
            *backward("SumBackward0", "ExpBackward0") * 2,
        ]


def test_a_backward_inside_of_a_backward() -> None:
    def nested() -> None:
        with torch.enable_grad():
            inner.sum().backward()

    with FunctionRecorder() as hook:
        inner = x().exp()
        loss = Runs.apply(x(), int, nested).sum()
        hook.taken()
        loss.backward()
        events = hook.taken()

    assert events[:3] == [*backward("sum"), "backward pre Runs"]
    assert events[-1] == "backward post Runs"
    assert [e for e in events[3:-1] if "back" in e] == backward("sum", "exp")
    assert [e for e in events if "back" not in e] == forward("sum")
