"""Custom autograd Functions are seen whoever keeps their ``apply``, and since when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.fake_clock import MS, FakeClock, burn
from tests.functions import FunctionKeeper, FunctionRecorder, backward, forward, x
from torchprof_hooks import add_hook, delete_hook, profile

pytestmark = pytest.mark.usefixtures("clock")

#: How often each ``setup_context`` was called.
set_up: list[str] = []


class Planted(torch.autograd.Function):
    """Takes 3 ms, and 5 ms in backward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        burn(3)
        ctx.factor = factor
        return value * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        burn(5)
        return grad * ctx.factor, None


class SetUp(torch.autograd.Function):
    """Takes 3 ms, of which 1 ms to set up its context, and 5 ms in backward."""

    @staticmethod
    def forward(value: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        burn(2)
        return value * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        burn(1)
        set_up.append("SetUp")
        assert isinstance(inputs, tuple)
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        burn(5)
        return grad * ctx.factor, None


class Nested(torch.autograd.Function):
    """Applies another one inside of its forward, and itself."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, depth: int) -> torch.Tensor:
        burn(1)
        if depth:
            return keep_nested(value, depth - 1)
        return keep_planted(value, 2.0).clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class Refuses(torch.autograd.Function):
    """Raises in forward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        raise LookupError("refused")

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


#: Kept since before anybody listened.
keep_planted: Callable[..., torch.Tensor] = Planted.apply
keep_set_up: Callable[..., torch.Tensor] = SetUp.apply
keep_nested: Callable[..., torch.Tensor] = Nested.apply
keep_refuses: Callable[..., torch.Tensor] = Refuses.apply


def looked_up_planted(*args: Any) -> Any:
    return Planted.apply(*args)


def looked_up_set_up(*args: Any) -> Any:
    return SetUp.apply(*args)


APPLICATIONS = pytest.mark.parametrize(
    ("name", "apply"),
    [
        ("Planted", keep_planted),
        ("Planted", looked_up_planted),
        ("SetUp", keep_set_up),
        ("SetUp", looked_up_set_up),
    ],
    ids=["kept", "looked up", "kept, with setup_context", "setup_context"],
)


@APPLICATIONS
def test_forward_and_backward_are_booked_on_the_function(
    name: str, apply: Callable[..., torch.Tensor], clock: FakeClock
) -> None:
    value = x()
    start_ns = clock.now_ns
    with profile(functions=True) as profiler:
        apply(value, 3.0).sum().backward()
    booked = {
        (chain[-1].partition("(")[0], phase): totals.self_ns
        for (chain, phase), totals in profiler.profile.cells.items()
        if totals.self_ns
    }

    assert booked == {(name, "forward"): 3 * MS, (name, "backward"): 5 * MS}
    assert clock.now_ns == start_ns + 8 * MS
    assert value.grad is not None
    assert value.grad.unique().tolist() == [3.0]


@APPLICATIONS
def test_a_hook_is_called_around_forward_and_backward(
    name: str, apply: Callable[..., torch.Tensor]
) -> None:
    set_up.clear()
    hook = FunctionKeeper()
    with hook:
        apply(x(), 3.0).sum().backward()
    mine = [seen for seen in hook.seen if seen.call.name == name]

    assert [seen.event for seen in mine] == [*forward(name), *backward(name)]
    assert {id(seen.call) for seen in mine} == {id(mine[0].call)}
    assert mine[0].call.input_shapes == ((2, 3),)
    assert mine[0].call.node_names == (f"{name}Backward",)
    assert set_up == ([name] if name == "SetUp" else [])


@APPLICATIONS
def test_a_hook_on_the_class(name: str, apply: Callable[..., torch.Tensor]) -> None:
    hook = FunctionRecorder()
    cls = {"Planted": Planted, "SetUp": SetUp}[name]
    add_hook(cls, hook)
    try:
        apply(x(), 3.0).sum().backward()
    finally:
        delete_hook(cls, hook.name)
    apply(x(), 3.0).sum().backward()

    assert hook.events == [
        f"added {name}",
        *forward(name),
        *backward(name),
        f"deleted {name}",
    ]


def test_kept_functions_inside_of_each_other(clock: FakeClock) -> None:
    with profile(functions=True) as profiler:
        keep_nested(x(), 2)
    booked = {
        tuple(name.partition("(")[0] for name in chain): (totals.calls, totals.self_ns)
        for (chain, _), totals in profiler.profile.cells.items()
        if totals.self_ns
    }

    outer = ("Nested",)
    assert booked == {
        outer: (1, MS),
        outer * 2: (1, MS),
        outer * 3: (1, MS),
        (*outer * 3, "Planted"): (1, 3 * MS),
    }


def test_a_kept_function_that_raises_is_over() -> None:
    hook = FunctionRecorder()
    with hook:
        with pytest.raises(LookupError, match="refused"):
            keep_refuses(x())
        keep_planted(x(), 2.0)

    mine = [e for e in hook.events if "Refuses" in e or "Planted" in e]
    assert mine == ["pre Refuses", *forward("Planted")]


def test_what_was_looked_up_while_we_listened_works_afterwards() -> None:
    with FunctionRecorder():
        kept = Planted.apply
    again = FunctionRecorder()
    kept(x(), 2.0)
    with again:
        kept(x(), 2.0)

    assert [e for e in again.events if "Planted" in e] == forward("Planted")


def test_forward_can_be_read_and_replaced_while_we_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = vars(Planted)["forward"]
    with FunctionRecorder():
        assert Planted.forward is original.__func__
        monkeypatch.setattr(Planted, "forward", staticmethod(lambda ctx, v, f: v + f))
        assert keep_planted(x(), 1.0).tolist() == (x() + 1.0).tolist()
