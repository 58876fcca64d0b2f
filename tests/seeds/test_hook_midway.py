"""Hooks that come and go in the middle of a call or of a pass, and what they may do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.functions import (
    FunctionRecorder,
    Runs,
    backward,
    forward,
    x,
)
from tests.helpers import MyModel, Recorder, inputs
from tests.seeds.hook_places import AROUND, PLACES, Around
from torchprof_hooks import (
    FunctionCall,
    LinkCall,
    LinkHook,
    add_hook,
    delete_hook,
)

pytestmark = pytest.mark.usefixtures("no_mode_stays")


@pytest.fixture(params=AROUND)
def around(request: pytest.FixtureRequest) -> Around:
    return AROUND[request.param]()


def test_a_hook_added_in_the_middle_of_a_call(around: Around) -> None:
    hook = around.kind()
    around.call(lambda: add_hook(around.target, hook))
    added = hook.taken()
    around.call(int)
    delete_hook(around.target, hook.name)

    assert [event.split()[0] for event in added] == ["added"]  # no post without a pre
    assert hook.events[:-1] == around.local


def test_a_hook_replaced_in_the_middle_of_a_call(around: Around) -> None:
    first, second = around.kind(), around.kind()

    def replace() -> None:
        delete_hook(around.target, first.name)
        add_hook(around.target, second)

    add_hook(around.target, first)
    around.call(replace)
    delete_hook(around.target, second.name)

    assert first.events[1:-1] == around.local[:1]
    assert len(second.events) == 2  # added and deleted


def test_a_hook_entered_in_the_middle_of_a_call(around: Around) -> None:
    hook = around.kind()

    around.call(hook.__enter__)
    events = hook.taken()
    around.call(int)
    hook.__exit__(None, None, None)

    assert events[1:] == around.second_half  # no post without a pre
    whens = [event.split()[0] for event in hook.events[:-1]]
    assert whens == [event.split()[0] for event in around.whole]


def test_a_hook_left_in_the_middle_of_a_call(around: Around) -> None:
    hook = around.kind()

    hook.__enter__()
    around.call(lambda: hook.__exit__(None, None, None))
    left = hook.taken()
    with hook:
        around.call(int)

    assert left == ["added NoneType", *around.first_half, "deleted NoneType"]
    assert hook.events[1:-1] == around.whole


# Backward


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
    hook, on = FunctionRecorder(), []
    if target == "class":
        on.append(add_hook(Runs, hook))
    hidden = Runs.apply(x().exp(), int, lambda: delete_hook(on[0], hook.name))
    if target == "node":
        on.append(add_hook(hidden.grad_fn, hook))
    hook.taken()

    hidden.sum().backward()
    Runs.apply(x()).sum().backward()

    name = "Runs" if target == "class" else "RunsBackward"
    assert hook.events == [f"backward pre {name}", f"deleted {name}"]


# What hooks do when they are called


AT_EACH_EVENT = [(where, at) for where in PLACES for at in PLACES[where]().events]


@pytest.mark.parametrize(("where", "at"), AT_EACH_EVENT)
def test_a_hook_may_take_itself_away(where: str, at: str) -> None:
    place = PLACES[where]()
    hook = place.acting(at, lambda: place.delete(hook))
    place.add(hook)

    for _ in range(2):
        place.step()

    seen = place.events[: place.events.index(at) + 1]
    assert hook.events == [place.added, *seen, place.deleted]


def test_a_hook_may_hook_modules() -> None:
    inner = Recorder("inner")

    class Spreads(LinkHook):
        def forward_preprocess(self, args: LinkCall) -> None:
            if isinstance(args.link, MyModel):
                add_hook(args.link.l1, inner)

    with Spreads():
        MyModel()(inputs())

    assert inner.events == ["added Linear", *forward("Linear")]


def test_a_hook_may_call_a_module() -> None:
    other = nn.Identity()

    class Curious(Recorder):
        def forward_postprocess(self, args: LinkCall) -> None:
            super().forward_postprocess(args)
            if args.link is not other:
                other(args.out)

    linear = nn.Linear(3, 3)
    with Curious() as hook:
        linear(inputs())
        linear(inputs())

    assert hook.events[1:-1] == forward("Linear", "Identity") * 2


def test_a_hook_may_call_functions() -> None:
    class Curious(FunctionRecorder):
        def note(
            self, callback: str, function: FunctionCall, in_data: Any, out_grad: Any
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
