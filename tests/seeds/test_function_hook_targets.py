"""Hooks on one function: a node, a class of custom Functions, a torch function."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from tests.functions import (
    Cube,
    FunctionKeeper,
    FunctionRecorder,
    Runs,
    backward,
    forward,
    x,
)
from torchprof_hooks import add_hook, delete_hook

# Nodes


@pytest.mark.parametrize(
    ("call", "name"), [(torch.exp, "ExpBackward0"), (Cube.apply, "CubeBackward")]
)
def test_what_a_hook_on_a_node_is_told(call: Any, name: str) -> None:
    hidden, hook = call(x()), FunctionKeeper()
    add_hook(hidden.grad_fn, hook)

    hidden.sin().sum().backward()

    assert hook.events == [f"added {name}", *backward(name)]
    seen = hook.only(f"backward pre {name}")
    assert (seen.in_data, seen.out_grad) == ([], [(2, 3)])
    assert seen.call.node_names == (name,)
    assert hook.seen[0].call is hook.seen[1].call


@pytest.mark.parametrize("by_grad", [False, True])
def test_a_hook_on_several_nodes_is_called_in_each_pass(by_grad: bool) -> None:
    tensor, hook = x(), FunctionRecorder()
    hidden = tensor.exp()
    loss = hidden.sum()
    for node in (hidden.grad_fn, loss.grad_fn):
        add_hook(node, hook)
    hook.taken()

    def run() -> list[str]:
        if by_grad:
            torch.autograd.grad(loss, tensor, retain_graph=True)
        else:
            loss.backward(retain_graph=True)
        return hook.taken()

    both = backward("SumBackward0", "ExpBackward0")
    assert [run(), run()] == [both, both]
    delete_hook(hidden.grad_fn, hook.name)
    assert run() == ["deleted ExpBackward0", *backward("SumBackward0")]
    delete_hook(loss.grad_fn, hook.name)
    assert run() == ["deleted SumBackward0"]


def test_a_hook_on_a_node_that_does_not_run_is_silent() -> None:
    hidden, hook = x().exp(), FunctionRecorder()
    add_hook(hidden.grad_fn, hook)

    torch.autograd.grad(hidden.sum(), hidden)

    assert hook.events == ["added ExpBackward0"]


def test_a_hook_on_the_node_of_a_leaf() -> None:
    leaf, hook = x(), FunctionKeeper()
    (leaf + 0).sum().backward()
    node = (leaf * 1).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    add_hook(node, hook)

    (leaf * 2).sum().backward()
    delete_hook(node, hook.name)

    assert [s.out_grad for s in hook.seen] == [[(2, 3)]] * 2


# Classes


def test_a_hook_on_a_class_sees_all_its_calls_and_no_others() -> None:
    hook = FunctionKeeper()
    add_hook(Cube, hook)
    alias = Cube.apply

    Runs.apply(alias(Cube.apply(x())).exp()).sum().backward()
    delete_hook(Cube, hook.name)

    assert hook.events[1:-1] == [*forward("Cube", "Cube"), *backward("Cube", "Cube")]
    assert [s.in_data for s in hook.seen][:4] == [[(2, 3)]] * 4
    calls = [s.call for s in hook.seen]
    assert calls[0] is calls[1] is calls[6] is calls[7]
    assert calls[2] is calls[3] is calls[4] is calls[5]


def test_a_hook_on_a_class_is_not_on_those_that_derive_from_it() -> None:
    class Derived(Cube):
        pass

    hook = FunctionRecorder()
    add_hook(Cube, hook)
    Derived.apply(x())
    delete_hook(Cube, hook.name)

    assert hook.events == ["added Cube", "deleted Cube"]


# Torch functions

EYE = torch.eye(3, requires_grad=True)
IMAGE = torch.ones(1, 1, 4, 4)
#: With the arguments of a call.
SEEN: dict[str, tuple[Any, ...]] = {
    "F.relu": (F.relu, EYE),
    "torch.relu": (torch.relu, EYE),
    "Tensor.relu": (torch.Tensor.relu, EYE),
    "torch.exp": (torch.exp, EYE),
    "Tensor.exp": (torch.Tensor.exp, EYE),
    "linalg.inv": (torch.linalg.inv, EYE),
    "aten.sin": (torch.ops.aten.sin, EYE),
    "aten.sin.default": (torch.ops.aten.sin.default, EYE),
    "Tensor.add": (torch.Tensor.add, EYE, 1),
    "C++ without tensors": (torch.arange, 3),
    "a method in Python": (torch.Tensor.split, IMAGE, 1),
    "a method that torch does not list": (torch.Tensor.unflatten, IMAGE, 0, (1, 1)),
    "Python": (F.softmax, IMAGE, 0),
    "Python that torch does not list": (F.hardsigmoid, IMAGE),
    "one of two": (F.fractional_max_pool2d, IMAGE, 2, 1),
    "by a part": (torch.meshgrid, torch.ones(2), torch.ones(2)),
    "initialisation": (nn.init.uniform_, torch.ones(2)),
}


@pytest.mark.parametrize("call", SEEN.values(), ids=SEEN)
@pytest.mark.filterwarnings("ignore:.*meshgrid.*:UserWarning")
def test_a_hook_on_a_torch_function(call: tuple[Any, ...]) -> None:
    function, *arguments = call
    hook = FunctionRecorder()
    add_hook(function, hook)
    EYE.cos()
    result = function(*arguments)
    has_graph = isinstance(result, torch.Tensor) and result.requires_grad
    if has_graph:
        result.sum().backward()
    delete_hook(function, hook.name)
    function(*arguments)

    whens = [event.rpartition(" ")[0] for event in hook.events]
    passes = ["backward pre", "backward post"] if has_graph else []
    assert whens == ["added", "pre", "post", *passes, "deleted"]


def test_a_hook_on_the_method_of_an_operator_sees_the_operator() -> None:
    hook = FunctionRecorder()
    add_hook(torch.Tensor.add, hook)
    EYE + 1
    delete_hook(torch.Tensor.add, hook.name)

    assert hook.events[1:-1] == forward("add")


def test_a_hook_on_a_torch_function_does_not_see_what_torch_calls() -> None:
    hook = FunctionRecorder()
    add_hook(torch.relu, hook)
    F.relu(x())  # calls torch.relu
    delete_hook(torch.relu, hook.name)

    assert hook.events == ["added relu", "deleted relu"]


@pytest.mark.parametrize(
    "function",
    [
        F.sigmoid,
        F.upsample,
        nn.init.zeros_,
        nn.utils.clip_grad_norm_,
        torch.utils.checkpoint.checkpoint,
        torch.Tensor.__add__,
        torch.Tensor.__rsub__,
    ],
)
def test_functions_that_are_never_seen_are_refused(function: Any) -> None:
    with pytest.raises(TypeError, match=r"whose calls .* hook the functions that it"):
        add_hook(function, FunctionRecorder())
