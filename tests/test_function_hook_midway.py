"""Hooks on functions that come and go in the middle of a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.functions import (
    CUBE,
    Cube,
    FunctionRecorder,
    Runs,
    Tensors,
    backward,
    forward,
    x,
)
from torchprof_hooks import FunctionCall, FunctionHook, add_hook, delete_hook

pytestmark = pytest.mark.usefixtures("no_mode_stays")


def test_a_hook_entered_in_the_middle_of_a_call() -> None:
    hook = FunctionRecorder()

    Runs.apply(x(), hook.__enter__)
    events = hook.taken()
    Runs.apply(x())
    hook.__exit__(None, None, None)

    assert events == ["added NoneType", *forward("clone")]  # no post without a pre
    expected = ["pre Runs", *forward("clone"), "post Runs", "deleted NoneType"]
    assert hook.events == expected


def test_a_hook_left_in_the_middle_of_a_call() -> None:
    hook = FunctionRecorder()

    hook.__enter__()
    Runs.apply(x(), lambda: hook.__exit__(None, None, None))
    x().exp()

    assert hook.events == ["added NoneType", "pre Runs", "deleted NoneType"]


def test_a_hook_on_a_class_deleted_in_the_middle_of_a_call() -> None:
    hook = FunctionRecorder()
    add_hook(Runs, hook)

    Runs.apply(x(), lambda: delete_hook(Runs, hook.name))
    Runs.apply(x())

    assert hook.events == ["added Runs", "pre Runs", "deleted Runs"]


def test_a_hook_added_to_a_class_in_the_middle_of_its_call() -> None:
    hook = FunctionRecorder()

    Runs.apply(x(), lambda: add_hook(Runs, hook))
    events = hook.taken()
    Runs.apply(x())
    delete_hook(Runs, hook.name)

    assert events == ["added Runs"]
    assert hook.events == [*forward("Runs"), "deleted Runs"]


@pytest.mark.parametrize("by_grad", [False, True])
def test_a_hook_left_in_the_middle_of_a_backward(by_grad: bool) -> None:
    hook, tensor = FunctionRecorder(), x()

    hook.__enter__()
    loss = Runs.apply(tensor.exp(), int, lambda: hook.__exit__(None, None, None)).sum()
    hook.taken()
    torch.autograd.grad(loss, tensor) if by_grad else loss.backward()
    x().exp().sum().backward()

    expected = [*backward("sum"), "backward pre Runs", "deleted NoneType"]
    assert hook.events == expected


@pytest.mark.parametrize("target", ["class", "node"])
def test_a_hook_deleted_in_the_middle_of_a_backward(target: str) -> None:
    hook = FunctionRecorder()
    hidden = Runs.apply(x().exp(), int, lambda: delete_hook(on, hook.name))
    if target == "class":
        on: Any = Runs
        add_hook(on, hook)
        hidden = Runs.apply(x().exp(), int, lambda: delete_hook(on, hook.name))
    else:
        on = hidden.grad_fn
        add_hook(on, hook)
    hook.taken()

    hidden.sum().backward()
    Runs.apply(x()).sum().backward()

    name = "Runs" if target == "class" else "RunsBackward"
    assert hook.events == [f"backward pre {name}", f"deleted {name}"]


def test_a_hook_for_the_time_of_a_functions_backward() -> None:
    hook = FunctionRecorder()

    def watched() -> None:
        with hook:
            Cube.apply(x())

    Runs.apply(x().exp(), int, watched).sum().backward()
    x().exp()

    assert hook.events == ["added NoneType", *CUBE, "deleted NoneType"]


class Once(FunctionRecorder):
    """Deletes itself from its target as soon as it is called."""

    def __init__(self, target: Any, at: str) -> None:
        super().__init__()
        self.target, self.at = target, at

    def note(
        self, callback: str, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        super().note(callback, function, in_data, out_grad)
        if callback == self.at:
            delete_hook(self.target, self.name)


@pytest.mark.parametrize("at", ["pre", "post", "backward pre", "backward post"])
@pytest.mark.parametrize("target", [F.relu, Cube])
def test_a_hook_may_delete_itself_when_it_is_called(target: Any, at: str) -> None:
    hook, call = Once(target, at), Cube.apply if target is Cube else F.relu
    add_hook(target, hook)

    for _ in range(2):
        call(x()).sum().backward()

    all_four = [*forward(target.__name__), *backward(target.__name__)]
    first = all_four[: all_four.index(f"{at} {target.__name__}") + 1]
    expected = [f"added {target.__name__}", *first, f"deleted {target.__name__}"]
    assert hook.events == expected


@pytest.mark.parametrize("at", ["pre", "post", "backward pre", "backward post"])
def test_a_hook_may_leave_when_it_is_called(at: str) -> None:
    class Leaves(FunctionRecorder):
        def note(self, callback: str, *args: Any) -> None:
            super().note(callback, *args)
            if callback == at:
                self.__exit__(None, None, None)

    hook = Leaves()
    hook.__enter__()
    for _ in range(2):
        x().sum().backward()

    all_four = [*forward("sum"), *backward("sum")]
    first = all_four[: all_four.index(f"{at} sum") + 1]
    assert hook.events == ["added NoneType", *first, "deleted NoneType"]


def test_a_hook_may_hook_functions_when_it_is_called() -> None:
    inner = FunctionRecorder("inner")

    class Spreads(FunctionHook):
        def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
            if function.name == "exp":
                add_hook(F.relu, inner)

    with Spreads():
        F.relu(F.relu(x()).exp())
        delete_hook(F.relu, "inner")

    assert inner.events == ["added relu", *forward("relu"), "deleted relu"]


def test_a_hook_may_call_functions() -> None:
    class Curious(FunctionRecorder):
        def note(
            self,
            callback: str,
            function: FunctionCall,
            in_data: Tensors,
            out_grad: Tensors,
        ) -> None:
            super().note(callback, function, in_data, out_grad)
            for tensor in (*in_data, *out_grad):
                if function.name == "exp" and tensor is not None:
                    sums.append(float(tensor.detach().sum()))

    sums: list[float] = []
    kept = x()
    with Curious() as hook:
        kept.exp().sum().backward()

    # Four callbacks with the input of six ones, one of them with as many gradients.
    assert sums == [6.0] * 5
    mine = [e for e in hook.events if e.endswith("exp")]
    assert mine == [*forward("exp"), *backward("exp")]


def test_a_hook_may_keep_what_it_is_given() -> None:
    """Also tensors that only the graph has held until then, and that outlive it."""

    class Keeper(FunctionHook):
        name = "Keeper"

        def __init__(self) -> None:
            self.kept: list[torch.Tensor] = []

        def backward_preprocess(
            self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
        ) -> None:
            self.kept += [each for each in (*in_data, *out_grad) if each is not None]

    with Keeper() as hook:
        x().exp().sin().sum().backward()
    sums = [float(tensor.detach().sum()) for tensor in hook.kept]
    assert len(sums) >= 4  # an input that nobody needs any more is not there
