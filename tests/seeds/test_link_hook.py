"""What hooks on modules are told of calls, and of their backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.functions import backward
from tests.helpers import BACKWARD, Keeper, MyModel, Recorder, in_thread, inputs
from tests.seeds.hook_places import WAYS, Run
from torchprof_hooks import LinkCall, LinkHook, add_hook, delete_hook


class Told(LinkHook):
    """Keeps what callbacks of the outermost module were told, when they were told."""

    def __init__(self) -> None:
        self.told: list[tuple[LinkCall, Any, dict[str, Any], Any]] = []

    def forward_preprocess(self, args: LinkCall) -> None:
        if isinstance(args.link, MyModel):
            self.told.append((args, args.args, dict(args.kwargs), args.out))

    forward_postprocess = forward_preprocess


@pytest.mark.parametrize("everywhere", [True, False])
@pytest.mark.parametrize(
    ("positional", "keywords"),
    [(("x",), ()), (("x", "scale"), ()), (("x",), ("scale",)), ((), ("x", "scale"))],
)
def test_what_the_callbacks_are_told(
    positional: tuple[str, ...], keywords: tuple[str, ...], everywhere: bool
) -> None:
    values: dict[str, Any] = {"x": inputs(), "scale": 2.0}
    args = tuple(values[name] for name in positional)
    kwargs = {name: values[name] for name in keywords}
    model, hook = MyModel(), Told()
    if everywhere:
        with hook:
            out = model(*args, **kwargs)
    else:
        add_hook(model, hook)
        out = model(*args, **kwargs)
        delete_hook(model, hook.name)
    (_, *before), (call, *after) = hook.told
    assert before == [args, kwargs, None]
    assert after[:2] == [args, kwargs]
    assert after[2] is out
    assert call.link is call.module is model
    assert (call.path, call.forward_name) == ("MyModel", "forward")


def test_each_call_has_one_object_with_its_own_arguments() -> None:
    model, x = MyModel(), inputs()
    with Keeper() as hook:
        model(scale=2.0, x=x)
        model(x)
    outermost, inner = hook.calls[:2]
    assert outermost is hook.calls[5]  # of one call
    assert len({id(call) for call in hook.calls}) == 6
    assert inner.link is model.l1
    assert (inner.args, inner.kwargs) == ((x,), {})
    assert torch.equal(inner.out, model.l1(x))
    text = "LinkCall(path='MyModel', link=MyModel, forward_name='forward', 0 args, "
    assert str(outermost) == repr(outermost) == text + "kwargs=['scale', 'x'])"


# Backward


@WAYS
def test_backward_mirrors_forward_each_time_a_graph_is_run(run: Run) -> None:
    model = MyModel()
    with Recorder() as hook:
        loss = model(inputs()).sum()
        hook.taken()
        loss.backward(retain_graph=True)
        run(loss, list(model.parameters()))
        assert hook.events == BACKWARD * 2


def test_what_backward_callbacks_are_told() -> None:
    model = MyModel()
    with Keeper() as hook:
        loss = model(inputs(), scale=2.0).sum()
        hook.calls.clear()
        loss.backward()

    links = [model, model.l2, model.l2, model.l1, model.l1, model]
    assert [call.link for call in hook.calls] == links
    for call in hook.calls:
        assert (call.args, call.kwargs, call.out) == ((), {}, None)
        assert call.forward_name == "forward"


class Attention(nn.Module):
    """q, k and v get one and the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(3, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.q(x) * self.k(x) + self.v(x)
        return result


@WAYS
@pytest.mark.parametrize("needs_grad", [False, True])
def test_modules_that_share_an_input_come_one_after_the_other(
    run: Run, needs_grad: bool
) -> None:
    # The node of * runs between v and k: it is the attention's, and no callback.
    attention, x = Attention(), inputs().requires_grad_(needs_grad)
    with Recorder() as hook:
        loss = attention(x).sum()
        hook.taken()
        run(loss, list(attention.parameters()))
        assert hook.events == [
            "backward pre Attention",
            *backward("Attention.v", "Attention.k", "Attention.q"),
            "backward post Attention",
        ]


def test_a_module_called_twice_has_two_backwards() -> None:
    linear = nn.Linear(3, 3)
    with Recorder() as hook:
        loss = linear(linear(inputs())).sum()
        hook.taken()
        loss.backward()
        assert hook.events == backward("Linear", "Linear")


def test_only_modules_that_made_nodes_have_a_backward() -> None:
    model = nn.Sequential(nn.Identity(), nn.Linear(3, 3), nn.ReLU())
    with Recorder() as hook:
        model(inputs()).sum().backward()
        assert [e for e in hook.taken() if e.startswith("backward pre")] == [
            "backward pre Sequential",
            "backward pre Sequential.2",
            "backward pre Sequential.1",
        ]
        with torch.no_grad():
            model(inputs())
        (model(inputs()).detach() * torch.ones(3, requires_grad=True)).sum().backward()
        assert not [e for e in hook.taken() if e.startswith("backward")]


def test_a_backward_is_told_of_if_the_hook_was_there_in_forward_and_is_still() -> None:
    model, thread_wide, local = MyModel(), Recorder(), Recorder()
    before = model(inputs()).sum()
    with thread_wide:
        before.backward()
        assert thread_wide.taken() == ["added NoneType"]
        within = model(inputs()).sum()
        elsewhere = model(inputs()).sum()
        thread_wide.taken()
        in_thread(elsewhere.backward)
        assert thread_wide.events == []
    add_hook(model, local)
    on_module = model(inputs()).sum()
    delete_hook(model, local.name)
    thread_wide.taken(), local.taken()

    within.backward()
    on_module.backward()

    assert thread_wide.events == local.events == []


def test_a_hook_replaced_on_a_module_is_silent_there_in_backward_too() -> None:
    model, local = MyModel(), Recorder()
    add_hook(model.l1, local)

    with Recorder() as everywhere:
        loss = model(inputs()).sum()
        everywhere.taken(), local.taken()
        loss.backward()
        assert everywhere.events == [e for e in BACKWARD if not e.endswith("l1")]
    assert local.events == backward("Linear")
