from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from tests.functions import (
    Cube,
    FunctionKeeper,
    FunctionRecorder,
    SumAndDifference,
    backward,
    backward_pres,
    forward,
    x,
)
from tests.helpers import in_thread
from torchprof_hooks import FunctionCall, FunctionHook
from torchprof_hooks.function_hook import Tensors

TARGETS = torch.tensor([0, 1])


def by_backward(loss: torch.Tensor, tensor: torch.Tensor) -> None:
    loss.backward()


def by_autograd_backward(loss: torch.Tensor, tensor: torch.Tensor) -> None:
    torch.autograd.backward([loss])


def by_grad(loss: torch.Tensor, tensor: torch.Tensor) -> None:
    torch.autograd.grad(loss, tensor)


Run = Callable[[torch.Tensor, torch.Tensor], None]
WAYS = pytest.mark.parametrize("run", [by_backward, by_autograd_backward, by_grad])


def net(tensor: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """linear makes two nodes, cross_entropy as well."""
    return F.cross_entropy(F.linear(tensor.exp(), weight, weight[0]), TARGETS)


BACKWARD = backward("cross_entropy", "linear", "getitem", "exp")
#: The same, where nobody has seen the functions being called.
NODES = backward(
    "NllLossBackward0",
    "LogSoftmaxBackward0",
    "AddmmBackward0",
    "TBackward0",
    "SelectBackward0",
    "ExpBackward0",
)


def by_node(events: list[str]) -> list[str]:
    """Without what getitem's node does, which comes where the engine likes."""
    return [e for e in events if "getitem" not in e and "Select" not in e]


@WAYS
def test_backward_mirrors_forward(run: Run) -> None:
    tensor, weight = x(), x(3, 3)
    with FunctionRecorder() as hook:
        loss = net(tensor, weight)
        hook.taken()
        run(loss, tensor)
        events = hook.taken()

    assert by_node(events) == by_node(BACKWARD)


@WAYS
def test_a_graph_from_an_earlier_with_of_the_same_hook(run: Run) -> None:
    tensor, weight, hook = x(), x(3, 3), FunctionKeeper()
    with hook:
        loss = net(tensor, weight)
    hook.taken()
    hook.seen.clear()
    with hook:
        run(loss, tensor)

    assert by_node(hook.events[1:-1]) == by_node(BACKWARD)
    assert hook.only("backward pre linear").call.input_shapes == ((2, 3), (3, 3), (3,))


@WAYS
def test_a_graph_built_outside_goes_by_its_nodes(run: Run) -> None:
    tensor, weight = x(), x(3, 3)
    loss = net(tensor, weight)
    with FunctionKeeper() as hook:
        run(loss, tensor)

    # grad() runs only what leads to the input, and not what leads to the weight.
    unasked = "TBackward0" if run is by_grad else "none"
    expected = [e for e in NODES if not e.endswith(f" {unasked}")]
    assert by_node(hook.events[1:-1]) == by_node(expected)
    seen = hook.only("backward pre AddmmBackward0")
    assert (seen.in_data, seen.out_grad) == ([], [(2, 3)])
    assert seen.call.input_shapes == ()
    assert seen.call.node_names == ("AddmmBackward0",)
    assert seen.call.module_path == ""


@WAYS
def test_a_graph_from_another_hook_goes_by_its_nodes(run: Run) -> None:
    tensor = x()
    with FunctionRecorder("first"):
        loss = tensor.exp().sum()
    with FunctionRecorder("second") as second:
        run(loss, tensor)

    assert second.events[1:-1] == backward("SumBackward0", "ExpBackward0")


@WAYS
def test_a_graph_that_was_seen_in_part(run: Run) -> None:
    tensor = x()
    hidden = tensor.exp()
    with FunctionRecorder() as hook:
        loss = hidden.sin().sum()
        hook.taken()
        run(loss, tensor)
        assert hook.events == backward("sum", "sin", "ExpBackward0")


def test_a_backward_after_the_hook_was_left_is_silent() -> None:
    with FunctionRecorder() as hook:
        loss = x().exp().sum()
    hook.taken()

    loss.backward()

    assert hook.events == []


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
    class Sums(FunctionHook):
        def backward_preprocess(
            self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
        ) -> None:
            assert out_grad[0] is not None
            found[function.name] = out_grad[0].tolist()

        def backward_postprocess(
            self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
        ) -> None:
            alive[function.name] = out_grad[0] is not None

    found: dict[str, object] = {}
    alive: dict[str, bool] = {}
    tensor = torch.tensor([2.0, 3.0], requires_grad=True)
    with Sums():
        ((tensor * 5) ** 2).sum().backward()

    # d/dy sum(y ** 2) = 2 * y, with y = 10 and 15.
    assert found == {"sum": 1.0, "pow": [1.0, 1.0], "mul": [20.0, 30.0]}
    assert alive.keys() == found.keys()
    assert not alive["mul"]  # torch needs it no longer, so nor does anybody else


def test_out_grad_of_several_outputs() -> None:
    with FunctionKeeper() as hook:
        total, difference = SumAndDifference.apply(x(), x())
        total.sum().backward(retain_graph=True)
        (total.sum() + difference.sum()).backward()

    seen = [s.out_grad for s in hook.seen if s.event == "backward pre SumAndDifference"]
    assert seen == [[(2, 3), None], [(2, 3), (2, 3)]]


def test_out_grad_of_the_outputs_of_torch_functions() -> None:
    with FunctionKeeper() as hook:
        first, _, third = x(6).split(2)
        (first.sum() + third.sum()).backward()
        values, _ = x().sort(1)
        values.sum().backward()

    assert hook.only("backward pre split").out_grad == [(2,), None, (2,)]
    assert hook.only("backward pre sort").out_grad[0] == (2, 3)


def test_out_grad_of_outputs_that_come_from_several_nodes() -> None:
    # meshgrid makes a chain of nodes for each of its outputs.
    with FunctionKeeper() as hook:
        rows, columns = torch.meshgrid(x(2), x(3), indexing="ij")
        (rows.sum() + columns.sum()).backward()

    # Those of the node that runs first: the others are not known yet.
    assert hook.only("backward pre meshgrid").out_grad == [(2, 3)]


def test_functions_that_make_no_nodes_have_no_backward() -> None:
    with FunctionRecorder() as hook:
        tensor = x()
        with torch.no_grad():
            tensor.exp()
        (tensor.exp().detach() + tensor.max(1).indices[:, None]).sum()
        (tensor.sin() + tensor.round().detach()).sum().backward()

    assert backward_pres(hook.events) == ["sum", "add", "sin"]


def test_a_function_called_twice_has_two_backwards() -> None:
    with FunctionKeeper() as hook:
        x().exp().exp().sum().backward()

    assert hook.events[-5:-1] == backward("exp", "exp")
    calls = [s.call for s in hook.seen if s.event == "backward pre exp"]
    assert calls[0] is not calls[1]


def test_many_calls_in_one_graph_have_a_pair_each() -> None:
    # More than are kept between two times that records are made of them.
    count = 2000
    with FunctionKeeper() as hook:
        tensor = x()
        for _ in range(count):
            tensor = tensor.sin()
        hook.seen.clear()
        tensor.sum().backward()

    seen = [s for s in hook.seen if s.event == "backward pre sin"]
    assert len(seen) == count
    assert len({id(s.call) for s in seen}) == count
    assert {s.call.input_shapes for s in seen} == {((2, 3),)}


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
    with FunctionRecorder() as hook:
        loss = Cube.apply(tensor).sum()
        hook.taken()
        torch.autograd.backward(loss, retain_graph=True)
        run(loss, tensor)
        assert hook.events == backward("sum", "Cube") * 2


def test_a_retained_graph_of_nodes_has_its_callbacks_each_time() -> None:
    loss = x().exp().sum()
    with FunctionRecorder() as hook:
        for _ in range(3):
            loss.backward(retain_graph=True)

    assert hook.events[1:-1] == backward("SumBackward0", "ExpBackward0") * 3


def test_two_losses_over_one_graph() -> None:
    with FunctionRecorder() as hook:
        hidden = x().exp()
        first, second = hidden.sin().sum(), hidden.cos().sum()
        hook.taken()
        first.backward(retain_graph=True)
        assert hook.taken() == backward("sum", "sin", "exp")
        second.backward()
        assert hook.taken() == backward("sum", "cos", "exp")


def test_several_roots() -> None:
    with FunctionRecorder() as hook:
        hidden = x().exp()
        losses = [hidden.sin().sum(), hidden.cos().sum()]
        hook.taken()
        torch.autograd.backward(losses)
        assert hook.events == backward("sum", "cos", "sum", "sin", "exp")


def test_hooks_and_gradients_do_not_depend_on_each_other() -> None:
    tensor, weight = x(), x(3, 3)
    bare = torch.autograd.grad(net(tensor, weight), [tensor, weight])

    with FunctionRecorder("first"), FunctionRecorder("second"):
        hooked = torch.autograd.grad(net(tensor, weight), [tensor, weight])

    assert all(map(torch.equal, bare, hooked))


def test_a_backward_in_another_thread_is_not_this_threads() -> None:
    with FunctionRecorder() as hook:
        loss = x().exp().sum()
        hook.taken()
        in_thread(loss.backward)
        assert hook.events == []


def test_a_backward_inside_of_a_backward() -> None:
    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                inner.sum().backward()
            return gradients[0]

    with FunctionRecorder() as hook:
        inner = x().exp()
        loss = Nested.apply(x()).sum()
        hook.taken()
        loss.backward()
        events = hook.taken()

    assert events[:3] == [*backward("sum"), "backward pre Nested"]
    assert events[-1] == "backward post Nested"
    assert [e for e in events[3:-1] if "back" in e] == backward("sum", "exp")
    assert [e for e in events if "back" not in e] == forward("sum")
