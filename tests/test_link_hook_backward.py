from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.helpers import BACKWARD, Keeper, MyModel, Recorder, in_thread, inputs
from torchprof_hooks import add_hook, delete_hook


def by_backward(model: nn.Module, loss: torch.Tensor) -> None:
    loss.backward()


def by_autograd_backward(model: nn.Module, loss: torch.Tensor) -> None:
    torch.autograd.backward([loss])


def by_grad(model: nn.Module, loss: torch.Tensor) -> None:
    torch.autograd.grad(loss, list(model.parameters()))


WHEN = ("pre", "post")
WAYS = pytest.mark.parametrize("run", [by_backward, by_autograd_backward, by_grad])

Run = Callable[[nn.Module, torch.Tensor], None]


@WAYS
def test_backward_mirrors_forward(run: Run) -> None:
    model = MyModel()
    with Recorder() as hook:
        loss = model(inputs()).sum()
        hook.taken()
        run(model, loss)
        assert hook.events == BACKWARD


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
        run(attention, loss)
        inner = [f"backward {when} Attention.{m}" for m in "vkq" for when in WHEN]
        assert hook.events == [
            "backward pre Attention",
            *inner,
            "backward post Attention",
        ]


def test_a_hook_on_one_module_has_its_backward_alone() -> None:
    model, hook = MyModel(), Recorder()
    add_hook(model.l1, hook)

    model(inputs()).sum().backward()

    assert hook.events == [
        "added Linear",
        "pre Linear",
        "post Linear",
        "backward pre Linear",
        "backward post Linear",
    ]


def test_a_module_called_twice_has_two_backwards() -> None:
    linear = nn.Linear(3, 3)
    with Recorder() as hook:
        loss = linear(linear(inputs())).sum()
        hook.taken()
        loss.backward()
        assert hook.events == ["backward pre Linear", "backward post Linear"] * 2


def test_a_retained_graph_has_its_callbacks_each_time() -> None:
    model = MyModel()
    with Recorder() as hook:
        loss = model(inputs()).sum()
        hook.taken()
        loss.backward(retain_graph=True)
        loss.backward()
        assert hook.events == BACKWARD * 2


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


def test_a_backward_without_the_hooks_forward_is_silent() -> None:
    model = MyModel()
    loss = model(inputs()).sum()
    with Recorder() as hook:
        loss.backward()
        assert hook.taken() == ["added NoneType"]
        loss = model(inputs()).sum()
    hook.taken()
    loss.backward()

    assert hook.events == []


def test_a_hook_deleted_before_the_backward_is_silent() -> None:
    hook = Recorder()
    model = add_hook(MyModel(), hook)
    loss = model(inputs()).sum()
    delete_hook(model, "Recorder")
    hook.taken()

    loss.backward()

    assert hook.events == []


def test_a_hook_replaced_on_a_module_is_silent_there_in_backward_too() -> None:
    model, local = MyModel(), Recorder()
    add_hook(model.l1, local)

    with Recorder() as everywhere:
        loss = model(inputs()).sum()
        everywhere.taken(), local.taken()
        loss.backward()
        assert everywhere.events == [e for e in BACKWARD if not e.endswith("l1")]
    assert local.events == ["backward pre Linear", "backward post Linear"]


def test_hooks_and_gradients_do_not_depend_on_each_other() -> None:
    model, x = MyModel(), inputs().requires_grad_()
    (bare,) = torch.autograd.grad(model(x).sum(), x)

    with Recorder():
        (hooked,) = torch.autograd.grad(model(x).sum(), x)

    assert torch.equal(bare, hooked)


def test_a_backward_in_another_thread_is_not_this_threads() -> None:
    model = MyModel()
    with Recorder() as hook:
        loss = model(inputs()).sum()
        hook.taken()
        in_thread(loss.backward)
        assert hook.events == []


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("broken")


class BreaksBehind(nn.Module):
    """Its backward raises between those of its two Linears."""

    def __init__(self) -> None:
        super().__init__()
        self.l1, self.l2 = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, broken: bool) -> torch.Tensor:
        hidden = self.l1(x)
        if broken:
            hidden = Broken.apply(hidden)
        result: torch.Tensor = self.l2(hidden)
        return result


def test_a_backward_that_raises_has_no_posts_for_what_it_left() -> None:
    model = BreaksBehind()
    with Recorder() as hook:
        loss = model(inputs(), broken=True).sum()
        hook.taken()
        with pytest.raises(ArithmeticError, match="broken"):
            loss.backward()
        events = hook.taken()
        model(inputs(), broken=False).sum().backward()
        next_events = hook.events[-6:]

    assert events == [
        "backward pre BreaksBehind",
        "backward pre BreaksBehind.l2",
        "backward post BreaksBehind.l2",
    ]
    assert next_events == [e.replace("MyModel", "BreaksBehind") for e in BACKWARD]
