"""What hooks keep alive, and what keeps them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
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
from tests.helpers import Recorder, inputs
from torchprof_hooks import FunctionCall, LinkHook, add_hook, delete_hook

pytestmark = pytest.mark.usefixtures("no_mode_stays")


@pytest.fixture
def no_gc() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Watcher(FunctionRecorder):
    """Holds all that its callbacks are given, weakly."""

    def __init__(self) -> None:
        super().__init__("Watcher")
        self.inputs: list[weakref.ref[Any]] = []
        self.gradients: list[weakref.ref[Any]] = []
        self.calls: list[weakref.ref[FunctionCall]] = []

    def note(
        self, callback: str, function: FunctionCall, in_data: Tensors, out_grad: Tensors
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
    assert hook.only("backward pre sum").in_data == [None]
    assert hook.only("backward pre mul").in_data == [(2, 3)]


@pytest.mark.usefixtures("no_gc")
@pytest.mark.parametrize(
    ("target", "callbacks"),
    [
        (None, 20),
        (F.relu, 4),
        (Cube, 4),
    ],  # 20: mul relu Cube (mul mul) sum, 4 backwards
    ids=["thread", "function", "class"],
)
def test_nothing_is_kept_alive_by_a_hook(target: Any, callbacks: int) -> None:
    hook = Watcher()
    if target:
        add_hook(target, hook)
    with nullcontext() if target else hook:
        tensor = x()
        loss = Cube.apply(F.relu(tensor * 2)).sum()
        loss.backward()
        del tensor, loss

        assert hook.alive() == []
    if target:
        delete_hook(target, "Watcher")
    assert len(hook.calls) == callbacks


@pytest.mark.usefixtures("no_gc")
def test_a_backward_that_raises_frees_its_gradients() -> None:
    with Watcher() as hook:
        loss = Runs.apply(x().exp(), int, raises(ArithmeticError)).sin().sum()
        with suppress(ArithmeticError):
            loss.backward()
        assert len(hook.gradients) >= 3  # at least before sum, sin and Runs
        del loss

        assert not any(gradient() is not None for gradient in hook.gradients)


# Modules, classes, nodes and hooks


def is_told_of_functions() -> bool:
    """Whether anybody here is told of custom Functions."""
    return "apply" in vars(_SingleLevelFunction)


def modes() -> int:
    """How many torch-function modes are on the stack."""
    return int(torch._C._len_torch_function_stack())


def test_a_module_dies_with_its_hook_on() -> None:
    hook = Recorder()
    module = add_hook(nn.Linear(3, 3), hook)
    module(inputs()).sum().backward()
    gone = weakref.ref(module)

    del module

    assert gone() is None  # at once, without the garbage collector
    assert "deleted Linear" not in hook.events
    add_hook(nn.Linear(3, 3), hook)  # maybe at the address of the first


def test_a_hook_that_knows_its_module_does_not_keep_it_alive() -> None:
    class Knows(LinkHook):
        def added(self, link: nn.Module | None) -> None:
            self.link = link

    module = add_hook(nn.Linear(3, 3), Knows())
    gone = weakref.ref(module)

    del module
    gc.collect()  # a cycle: the module, its hook, and back

    assert gone() is None


def make_class() -> Any:
    class Local(Cube):
        pass

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


def test_nothing_is_left_of_a_hook_and_it_dies_although_its_targets_live() -> None:
    hook = FunctionRecorder()
    gone = weakref.ref(hook)
    with hook:
        Cube.apply(x())
        assert modes() == 1
        assert is_told_of_functions()
    add_hook(F.relu, hook)
    assert modes() == 1
    delete_hook(F.relu, hook.name)
    add_hook(Cube, hook)
    assert modes() == 0
    delete_hook(Cube, hook.name)
    assert not is_told_of_functions()

    del hook
    gc.collect()

    assert gone() is None
