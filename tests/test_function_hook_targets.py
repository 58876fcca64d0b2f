"""Hooks on one function: a node, a class of custom Functions, a torch function."""

from __future__ import annotations

import threading
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
from tests.helpers import in_thread
from torchprof_hooks import add_hook, delete_hook

# Nodes


def test_a_hook_on_a_node_has_its_backward() -> None:
    hidden, hook = x().exp(), FunctionKeeper()
    loss = hidden.sin().sum()
    add_hook(hidden.grad_fn, hook)

    loss.backward()

    assert hook.events == ["added ExpBackward0", *backward("ExpBackward0")]
    seen = hook.only("backward pre ExpBackward0")
    assert (seen.in_data, seen.out_grad) == ([], [(2, 3)])
    assert seen.call.node_names == ("ExpBackward0",)
    assert hook.seen[0].call is hook.seen[1].call


@pytest.mark.parametrize("by_grad", [False, True])
def test_a_hook_on_a_node_is_called_in_each_pass(by_grad: bool) -> None:
    tensor, hook = x(), FunctionRecorder()
    loss = tensor.sum()
    add_hook(loss.grad_fn, hook)

    for _ in range(2):
        if by_grad:
            torch.autograd.grad(loss, tensor, retain_graph=True)
        else:
            loss.backward(retain_graph=True)
    delete_hook(loss.grad_fn, hook.name)
    loss.backward()

    assert hook.events[1:-1] == backward("SumBackward0") * 2
    assert hook.events[-1] == "deleted SumBackward0"


def test_a_hook_on_a_node_that_does_not_run_is_silent() -> None:
    hidden, hook = x().exp(), FunctionRecorder()
    add_hook(hidden.grad_fn, hook)

    torch.autograd.grad(hidden.sum(), hidden)

    assert hook.events == ["added ExpBackward0"]


def test_a_hook_on_several_nodes() -> None:
    hidden, hook = x().exp(), FunctionRecorder()
    loss = hidden.sum()
    for node in (hidden.grad_fn, loss.grad_fn):
        add_hook(node, hook)

    loss.backward(retain_graph=True)
    delete_hook(hidden.grad_fn, hook.name)
    loss.backward()

    both = backward("SumBackward0", "ExpBackward0")
    assert hook.events[2:6] == both
    assert hook.events[7:] == backward("SumBackward0")


def test_a_hook_on_the_node_of_a_leaf() -> None:
    leaf, hook = x(), FunctionKeeper()
    (leaf + 0).sum().backward()
    node = (leaf * 1).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    add_hook(node, hook)

    (leaf * 2).sum().backward()
    delete_hook(node, hook.name)

    assert [s.out_grad for s in hook.seen] == [[(2, 3)]] * 2


def test_a_hook_on_a_node_of_a_custom_function() -> None:
    hidden, hook = Cube.apply(x()), FunctionRecorder()
    add_hook(hidden.grad_fn, hook)

    hidden.sum().backward()

    assert hook.events[1:] == backward("CubeBackward")


def test_a_hook_on_a_node_next_to_a_thread_wide_one() -> None:
    local = FunctionRecorder("local")
    with FunctionRecorder() as everywhere:
        loss = x().exp().sum()
        add_hook(loss.grad_fn, local)
        everywhere.taken()
        loss.backward()
        assert everywhere.taken() == backward("sum", "exp")
    assert local.events[1:] == backward("SumBackward0")


def test_a_node_that_runs_in_another_thread() -> None:
    hook, loss = FunctionRecorder(), x().sum()
    add_hook(loss.grad_fn, hook)

    in_thread(loss.backward)

    assert hook.events[1:] == backward("SumBackward0")


def test_names_on_nodes_are_taken_once() -> None:
    loss = x().sum()
    add_hook(loss.grad_fn, FunctionRecorder())

    with pytest.raises(KeyError, match="'FunctionRecorder' already exists"):
        add_hook(loss.grad_fn, FunctionRecorder())
    with pytest.raises(KeyError, match=r"no hook 'T' here; .*: 'FunctionRecorder'"):
        delete_hook(loss.grad_fn, "T")
    add_hook(x().sum().grad_fn, FunctionRecorder())  # another node: free


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


def test_a_hook_on_a_class_sees_calls_inside_of_custom_functions() -> None:
    hook = FunctionRecorder()
    add_hook(Cube, hook)
    Runs.apply(x(), lambda: Cube.apply(x()))
    delete_hook(Cube, hook.name)

    assert hook.events[1:-1] == forward("Cube")


def test_a_hook_on_a_class_in_threads_at_once() -> None:
    hook, together, per_thread = FunctionKeeper(), threading.Barrier(3), 20
    add_hook(Cube, hook)

    def work() -> None:
        together.wait(timeout=60)
        for _ in range(per_thread):
            Cube.apply(x()).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    delete_hook(Cube, hook.name)

    for event in [*forward("Cube"), *backward("Cube")]:
        assert hook.events.count(event) == 3 * per_thread
    told = {id(s.call) for s in hook.seen}
    assert len(told) == 3 * per_thread  # each call has one description of its own


def test_a_class_hooked_in_the_middle_of_a_graph() -> None:
    hook, first = FunctionRecorder(), Cube.apply(x())
    add_hook(Cube, hook)
    Cube.apply(first).sum().backward()
    delete_hook(Cube, hook.name)

    assert hook.events[1:3] == forward("Cube")
    assert hook.events[3:5] == backward("Cube")  # the newest call is the first


# Torch functions


@pytest.mark.parametrize(
    ("target", "call"),
    [
        (F.relu, F.relu),
        (torch.relu, torch.relu),
        (torch.Tensor.relu, torch.Tensor.relu),
        (torch.exp, torch.exp),
        (torch.Tensor.exp, lambda t: t.exp()),
        (torch.linalg.inv, torch.linalg.inv),
        (torch.ops.aten.sin, torch.ops.aten.sin),
        (torch.ops.aten.sin.default, torch.ops.aten.sin.default),
        (torch.Tensor.__add__, lambda t: t + 1),
        (torch.Tensor.add, lambda t: t + 1),
    ],
    ids=[
        "F.relu",
        "torch.relu",
        "Tensor.relu",
        "torch.exp",
        "Tensor.exp",
        "linalg.inv",
        "aten.sin",
        "aten.sin.default",
        "Tensor.__add__",
        "Tensor.add",
    ],
)
def test_a_hook_on_a_torch_function(target: Any, call: Any) -> None:
    hook, tensor = FunctionRecorder(), torch.eye(3, requires_grad=True)
    add_hook(target, hook)
    tensor.cos()
    call(tensor).sum().backward()
    delete_hook(target, hook.name)
    call(tensor)

    whens = [event.rpartition(" ")[0] for event in hook.events]
    assert whens == ["added", *["pre", "post"], *backward_whens(), "deleted"]


def backward_whens() -> list[str]:
    return ["backward pre", "backward post"]


def test_a_hook_on_a_torch_function_sees_it_inside_of_modules() -> None:
    model, hook = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)), FunctionKeeper()
    add_hook(F.linear, hook)
    model(x()).sum().backward()
    delete_hook(F.linear, hook.name)

    twice = [*forward("linear", "linear"), *backward("linear", "linear")]
    assert hook.events[1:-1] == twice
    paths = [s.call.module_path for s in hook.seen if "pre" in s.event]
    outwards = ["Sequential.0", "Sequential.1"]
    assert paths == [*outwards, *reversed(outwards)]


def test_a_hook_on_a_torch_function_does_not_see_what_torch_calls() -> None:
    hook = FunctionRecorder()
    add_hook(torch.relu, hook)
    F.relu(x())  # calls torch.relu
    delete_hook(torch.relu, hook.name)

    assert hook.events == ["added relu", "deleted relu"]


# Functions of torch that are seen, and some that never are

IMAGE = torch.ones(1, 1, 4, 4)
SEEN: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "C++": (torch.relu, (IMAGE,)),
    "C++ without tensors": (torch.arange, (3,)),
    "a method": (torch.Tensor.sigmoid, (IMAGE,)),
    "a method in Python": (torch.Tensor.split, (IMAGE, 1)),
    "a method that torch does not list": (torch.Tensor.unflatten, (IMAGE, 0, (1, 1))),
    "Python": (F.softmax, (IMAGE, 0)),
    "Python that torch does not list": (F.hardsigmoid, (IMAGE,)),
    "one of two": (F.fractional_max_pool2d, (IMAGE, 2, 1)),
    "by a part": (torch.meshgrid, (torch.ones(2), torch.ones(2))),
    "initialisation": (nn.init.uniform_, (torch.ones(2),)),
    "an operator": (torch.Tensor.__add__, (IMAGE, 1)),
    "an operator in Python": (torch.Tensor.__rsub__, (IMAGE, 1)),
}


@pytest.mark.parametrize(("function", "arguments"), SEEN.values(), ids=SEEN)
@pytest.mark.filterwarnings("ignore:.*meshgrid.*:UserWarning")
def test_functions_that_are_seen_can_be_hooked(
    function: Any, arguments: tuple[Any, ...]
) -> None:
    hook = FunctionRecorder()
    add_hook(function, hook)
    function(*arguments)
    delete_hook(function, hook.name)
    assert len(hook.events) == 4  # with those of adding and deleting it


@pytest.mark.parametrize(
    ("function", "instead"),
    [
        (F.sigmoid, "torch.Tensor.sigmoid, which it calls"),
        (F.tanh, "torch.Tensor.tanh, which it calls"),
        (F.upsample, "the functions that it calls"),
        (nn.init.zeros_, "the functions that it calls"),
        (nn.utils.clip_grad_norm_, "the functions that it calls"),
        (torch.utils.checkpoint.checkpoint, "the functions that it calls"),
    ],
)
def test_functions_that_are_never_seen_are_refused(function: Any, instead: str) -> None:
    with pytest.raises(TypeError, match=f"whose calls .* not .*: hook {instead}"):
        add_hook(function, FunctionRecorder())
