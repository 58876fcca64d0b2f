"""Custom autograd Functions are seen whoever keeps their ``apply``, and since when."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.cores import NATIVE_CORE, SEES_KEPT_APPLY
from tests.fake_clock import MS, FakeClock, burn
from tests.functions import FunctionKeeper, FunctionRecorder, backward, forward, x
from torchprof_hooks import profile
from torchprof_hooks.profiler import Profiler

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
    """The same; of the 3 ms, 1 ms sets up its context."""

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

    backward = Planted.backward


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


class Refuses(Planted):
    """Raises in forward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        raise LookupError("refused")


#: Kept since before anybody listened.
keep_planted: Callable[..., torch.Tensor] = Planted.apply
keep_set_up: Callable[..., torch.Tensor] = SetUp.apply
keep_nested: Callable[..., torch.Tensor] = Nested.apply


def looks_up(cls: Any) -> Callable[..., torch.Tensor]:
    def apply(*given: Any) -> Any:
        return cls.apply(*given)

    return apply


WAYS = {
    "kept": (Planted, keep_planted),
    "looked up": (Planted, looks_up(Planted)),
    "kept, with setup_context": (SetUp, keep_set_up),
    "setup_context": (SetUp, looks_up(SetUp)),
}
APPLICATIONS = pytest.mark.parametrize(("cls", "apply"), WAYS.values(), ids=WAYS)
#: The same, where a hook with callbacks is told of it.
TOLD_APPLICATIONS = pytest.mark.parametrize(
    ("cls", "apply"),
    [
        pytest.param(*way, id=name, marks=[SEES_KEPT_APPLY] * name.startswith("kept"))
        for name, way in WAYS.items()
    ],
)


def booked(profiler: Profiler) -> dict[tuple[Any, str], tuple[int, float]]:
    """Calls and own milliseconds, where there are any, by the chain of functions."""
    return {
        (tuple(name.partition("(")[0] for name in chain), phase): (
            totals.calls,
            totals.self_ns / MS,
        )
        for (chain, phase), totals in profiler.profile.cells.items()
        if totals.self_ns
    }


def mine(events: list[str]) -> list[str]:
    """Those of the Functions here."""
    return [each for each in events if "Planted" in each or "Refuses" in each]


@NATIVE_CORE
@APPLICATIONS
def test_forward_and_backward_are_booked_on_the_function(
    cls: Any, apply: Callable[..., torch.Tensor], clock: FakeClock
) -> None:
    value = x()
    start_ns = clock.now_ns
    with profile(functions=True) as profiler:
        apply(value, 3.0).sum().backward()

    chain = (cls.__name__,)
    assert booked(profiler) == {(chain, "forward"): (1, 3), (chain, "backward"): (1, 5)}
    assert clock.now_ns == start_ns + 8 * MS
    assert value.grad is not None
    assert value.grad.unique().tolist() == [3.0]


@TOLD_APPLICATIONS
def test_a_hook_is_called_around_forward_and_backward(
    cls: Any, apply: Callable[..., torch.Tensor]
) -> None:
    name = cls.__name__
    set_up.clear()
    hook = FunctionKeeper()
    with hook:
        apply(x(), 3.0).sum().backward()
    seen = [each for each in hook.seen if each.call.name == name]

    assert [each.event for each in seen] == [*forward(name), *backward(name)]
    assert {id(each.call) for each in seen} == {id(seen[0].call)}
    assert seen[0].call.input_shapes == ((2, 3),)
    assert seen[0].call.node_names == (f"{name}Backward",)
    assert set_up == ([name] if cls is SetUp else [])


@NATIVE_CORE
def test_kept_functions_inside_of_each_other() -> None:
    with profile(functions=True) as profiler:
        keep_nested(x(), 2)

    assert booked(profiler) == {
        (("Nested",), "forward"): (1, 1),
        (("Nested", "Nested"), "forward"): (1, 1),
        (("Nested", "Nested", "Nested"), "forward"): (1, 1),
        (("Nested", "Nested", "Nested", "Planted"), "forward"): (1, 3),
    }


def test_what_was_looked_up_while_we_listened_works_afterwards() -> None:
    with FunctionRecorder():
        kept = Planted.apply
    again = FunctionRecorder()
    kept(x(), 2.0)
    with again:
        kept(x(), 2.0)

    assert mine(again.events) == forward("Planted")


def test_forward_can_be_read_and_replaced_while_we_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = vars(Planted)["forward"]
    with FunctionRecorder():
        assert Planted.forward is original.__func__
        monkeypatch.setattr(Planted, "forward", staticmethod(lambda ctx, v, f: v + f))
        assert keep_planted(x(), 1.0).tolist() == (x() + 1.0).tolist()
