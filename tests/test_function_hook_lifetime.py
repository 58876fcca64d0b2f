"""What hooks on functions hold, and until when; hooks that come and go meanwhile."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.function import _SingleLevelFunction

from tests.functions import (
    Cube,
    FunctionKeeper,
    FunctionRecorder,
    Runs,
    Tensors,
    backward,
    forward,
    raises,
    x,
)
from torchprof_hooks import FunctionCall, FunctionHook, add_hook, delete_hook


def modes() -> int:
    """How many torch-function modes are on the stack."""
    return int(torch._C._len_torch_function_stack())


def is_told_of_functions() -> bool:
    """Whether anybody here is told of custom Functions."""
    return "apply" in vars(_SingleLevelFunction)


@pytest.fixture(autouse=True)
def no_mode_stays() -> Iterator[None]:
    yield
    left = modes()
    while modes():
        torch._C._pop_torch_function_stack()
    assert left == 0


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Watcher(FunctionHook):
    """Holds all that its callbacks are given, weakly."""

    name = "Watcher"

    def __init__(self) -> None:
        self.inputs: list[weakref.ref[Any]] = []
        self.gradients: list[weakref.ref[Any]] = []
        self.calls: list[weakref.ref[FunctionCall]] = []

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        self.watch(function, in_data, ())

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        self.watch(function, in_data, ())

    def backward_preprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        self.watch(function, in_data, out_grad)

    def backward_postprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        self.watch(function, in_data, out_grad)

    def watch(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        self.calls.append(weakref.ref(function))
        self.inputs += [weakref.ref(tensor) for tensor in in_data if tensor is not None]
        self.gradients += [weakref.ref(g) for g in out_grad if g is not None]

    def alive(self) -> list[object]:
        references = [*self.inputs, *self.gradients, *self.calls]
        return [r() for r in references if r() is not None]


# Inputs, gradients and graphs


def test_an_input_that_is_gone_is_none() -> None:
    with FunctionKeeper() as hook:
        tensor, weight = x(), x(3, 3)
        loss = F.linear(tensor * 2, weight).sum()
        del weight
        loss.backward()

    assert hook.only("post linear").in_data == [(2, 3), (3, 3)]
    # Backward needs the weight, and only the elements of tensor * 2 to the other side.
    seen = hook.only("backward pre sum")
    assert seen.in_data == [None]
    assert hook.only("backward pre mul").in_data == [(2, 3)]


def test_backward_sees_the_inputs_that_are_alive() -> None:
    with FunctionKeeper() as hook:
        kept, loose = x(), [x()]
        loss = (kept + loose[0]).sum()
        loose.clear()
        loss.backward()

    # The leaf behind `loose` is held by its AccumulateGrad node until that has run.
    assert hook.only("backward pre add").in_data[0] == (2, 3)
    assert hook.only("backward pre sum").in_data == [None]


@pytest.mark.usefixtures("no_gc")
def test_nothing_is_kept_alive_by_a_thread_wide_hook() -> None:
    with Watcher() as hook:
        tensor = x()
        loss = Cube.apply(F.relu(tensor * 2)).sum()
        loss.backward()
        del tensor, loss

        assert hook.alive() == []
    assert len(hook.calls) == 20  # mul relu Cube (mul mul) sum; and 4 backwards


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize("target", [F.relu, Cube])
def test_nothing_is_kept_alive_by_a_hook_on_a_target(target: Any) -> None:
    hook, call = Watcher(), Cube.apply if target is Cube else F.relu
    add_hook(target, hook)
    tensor = x()
    loss = call(tensor * 2).sum()
    loss.backward()
    del tensor, loss
    delete_hook(target, "Watcher")

    assert hook.alive() == []
    assert len(hook.calls) == 4


@pytest.mark.usefixtures("no_gc")
def test_a_call_without_a_graph_is_gone_at_once() -> None:
    with Watcher() as hook:
        tensor = x()
        with torch.no_grad():
            F.relu(tensor * 2)

        assert [call() for call in hook.calls] == [None] * 4
        assert {r() is tensor for r in hook.inputs if r() is not None} == {True}


@pytest.mark.usefixtures("no_gc")
def test_a_graph_that_is_never_run_is_freed() -> None:
    with Watcher() as hook:
        loss = Cube.apply(x() * 2).sum()
        assert hook.alive() != []
        del loss

        assert hook.alive() == []


@pytest.mark.usefixtures("no_gc")
def test_a_backward_that_raises_frees_its_gradients() -> None:
    with Watcher() as hook:
        loss = Runs.apply(x().exp(), int, raises(ArithmeticError)).sin().sum()
        with suppress(ArithmeticError):
            loss.backward()
        assert len(hook.gradients) >= 3  # at least before sum, sin and Runs
        del loss

        assert not any(gradient() is not None for gradient in hook.gradients)


def test_nobody_is_left_with_a_reference() -> None:
    tensor, weight = x(), x(3, 3)
    F.linear(tensor, weight).sum().backward()  # their AccumulateGrad nodes
    before = sys.getrefcount(tensor), sys.getrefcount(weight)

    with FunctionRecorder():
        F.linear(tensor, weight).sum().backward()
        F.linear(tensor, weight)
        during = sys.getrefcount(tensor), sys.getrefcount(weight)

    assert during == before
    assert (sys.getrefcount(tensor), sys.getrefcount(weight)) == before


def test_results_live_no_longer_than_without_a_hook() -> None:
    with FunctionRecorder():
        result = x().exp()
        gone = weakref.ref(result)
        del result
        assert gone() is None


@pytest.mark.usefixtures("no_gc")
def test_a_gradient_is_gone_when_its_function_is_over() -> None:
    alive: dict[str, int] = {}

    class Counts(Watcher):
        def backward_preprocess(self, function: FunctionCall, *args: Any) -> None:
            alive[function.name] = sum(g() is not None for g in self.gradients)
            super().backward_preprocess(function, *args)

    with Counts():
        x().exp().sin().cos().sum().backward()

    # At most the gradient that a function's pre was given and its post, seen twice,
    # lives on: the engine hands it on to the next function.
    assert alive["sum"] == 0
    assert max(alive.values()) <= 2


# Classes, nodes and hooks


def make_class() -> Any:
    class Local(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0]

    return Local


def test_a_class_dies_with_its_hook_on() -> None:
    hook, local = FunctionRecorder(), make_class()
    add_hook(local, hook)
    local.apply(x()).sum().backward()
    gone = weakref.ref(local)

    del local
    gc.collect()
    living = gone()
    if living is not None:
        delete_hook(living, hook.name)

    assert living is None
    assert hook.events[1:] == [*forward("Local"), *backward("Local")]
    assert not is_told_of_functions()  # nobody listens any more


def test_a_class_dies_although_a_thread_wide_hook_has_seen_it() -> None:
    with FunctionRecorder():
        local = make_class()
        local.apply(x()).sum().backward()
        gone = weakref.ref(local)
        del local
        gc.collect()

        assert gone() is None


def test_a_node_dies_with_its_hook_on() -> None:
    entry = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    hook, loss = FunctionRecorder(), x().sum()
    add_hook(loss.grad_fn, hook)
    gone = weakref.ref(loss)
    loss.backward()

    del loss

    # The hook is alive, but nobody has to be told of backward passes any more.
    entry_now = torch.autograd._engine_run_backward  # type: ignore[attr-defined]
    events = hook.taken()
    del hook
    gc.collect()
    assert gone() is None
    assert events[1:] == backward("SumBackward0")
    assert entry_now is entry


def test_a_hook_dies_although_its_target_lives() -> None:
    hook = FunctionRecorder()
    gone = weakref.ref(hook)
    with hook:
        Cube.apply(x())
    add_hook(Cube, hook)
    delete_hook(Cube, hook.name)
    add_hook(F.relu, hook)
    delete_hook(F.relu, hook.name)

    del hook
    gc.collect()

    assert gone() is None


def test_nothing_is_left_of_a_hook() -> None:
    hook = FunctionRecorder()
    with hook:
        assert modes() == 1
        assert is_told_of_functions()
    add_hook(F.relu, hook)
    assert modes() == 1
    delete_hook(F.relu, hook.name)
    add_hook(Cube, hook)
    assert modes() == 0
    delete_hook(Cube, hook.name)

    assert modes() == 0
    assert not is_told_of_functions()
