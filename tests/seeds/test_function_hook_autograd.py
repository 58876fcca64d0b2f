"""Hooks on functions with all the ways of differentiating that torch has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.cores import SEES_KEPT_APPLY
from tests.functions import (
    Cube,
    FunctionKeeper,
    FunctionRecorder,
    backward,
    backward_pres,
    forward,
    x,
)


class Sine(torch.autograd.Function):
    """Written for torch.func: with setup_context."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * x.cos()

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        (x,) = ctx.saved_tensors
        return tangents[0] * x.cos()


def without(name: str, events: list[str]) -> list[str]:
    """Without the callbacks of functions called `name`."""
    return [event for event in events if event.split()[-1] != name]


# Double backward


def test_double_backward() -> None:
    tensor = x()
    with FunctionKeeper() as hook:
        loss = tensor.exp().sum()
        hook.taken()
        (gradient,) = torch.autograd.grad(loss, tensor, create_graph=True)
        assert hook.taken() == backward("sum", "exp")
        again = gradient.sum()
        assert hook.taken() == forward("sum")
        hook.seen.clear()
        again.backward()
        events = hook.taken()

    # The gradient of exp was multiplied by exp(x): by a node that no function has made.
    assert events == backward("sum", "MulBackward0", "exp")
    told = [(s.call.node_names, s.in_data, s.out_grad) for s in hook.seen]
    by_backward, by_forward = told[2], told[4]
    assert by_backward == (("MulBackward0",), [], [(2, 3)])
    assert by_forward == (("ExpBackward0",), [(2, 3)], [(2, 3)])


def test_double_backward_of_a_custom_function() -> None:
    tensor = x()
    with FunctionRecorder() as hook:
        (gradient,) = torch.autograd.grad(
            Cube.apply(tensor).sum(), tensor, create_graph=True
        )
        hook.taken()
        (second,) = torch.autograd.grad(gradient.sum(), tensor)
        events = hook.taken()

    assert second.tolist() == [[6.0] * 3] * 2  # (x ** 3)'' = 6 * x, x = 1
    # The second of them differentiates products that the backward of Cube has made.
    assert set(backward_pres(events)) == {"sum", "MulBackward0"}


# Checkpoints


def block(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.exp().sin()


#: The calls of a recomputation: torch leaves sin by an exception as soon as it has what
#: it needs, if it is not asked to go on.
RECOMPUTED = {
    "left early": [*forward("exp"), "pre sin"],
    "not left early": forward("exp", "sin"),
}


@pytest.mark.parametrize("stop", RECOMPUTED)
def test_a_checkpoint_calls_its_functions_again(stop: str) -> None:
    checkpoint(block, x(), use_reentrant=False)  # the first one imports a lot
    expected = forward("exp", "sin", "sum")
    early = torch.utils.checkpoint.set_checkpoint_early_stop(stop == "left early")
    with early, FunctionRecorder() as hook:
        loss = checkpoint(block, x(), use_reentrant=False).sum()
        # Before it calls them, it calls functions of its own.
        assert hook.taken()[-len(expected) :] == expected
        loss.backward()
        events = hook.taken()

    # sin's backward asks for exp's result, so both are called again, as forward calls.
    assert without("device", events) == [
        *backward("sum"),
        "backward pre sin",
        *RECOMPUTED[stop],
        "backward post sin",
        *backward("exp"),
    ]


def test_a_reentrant_checkpoint() -> None:
    with FunctionRecorder() as hook:
        loss = checkpoint(block, x(), use_reentrant=True).sum()
        assert hook.taken()[1:] == [
            "pre CheckpointFunction",
            *forward("exp", "sin"),
            "post CheckpointFunction",
            *forward("sum"),
        ]
        loss.backward()
        events = hook.taken()

    assert events == [
        *backward("sum"),
        "backward pre CheckpointFunction",
        *forward("exp", "sin"),
        *backward("sin", "exp"),
        "backward post CheckpointFunction",
    ]


# Kinds of functions and tensors


def in_place() -> Any:
    tensor = x() * 1
    tensor += 1
    return tensor.mul_(2).exp_()


def setting_elements() -> Any:
    tensor = x() * 1
    tensor[0] = 0
    return tensor


def sparse_gradients() -> Any:
    return F.embedding(torch.tensor([1, 1, 4]), x(10, 3), sparse=True)


def sparse_inputs() -> Any:
    dense = x(3, 3)
    return torch.sparse.mm(dense.detach().to_sparse(), dense).to_sparse()


def complex_tensors() -> Any:
    z = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    return torch.view_as_real(z * z)


THREES = [(3, 3), (3, 3)], [(3, 3)]


@pytest.mark.parametrize(
    ("work", "names", "name", "in_data", "out_grad"),
    [
        (in_place, ["exp_", "mul_", "add_", "mul"], "mul_", [(2, 3)], [(2, 3)]),
        (setting_elements, ["setitem", "mul"], "setitem", [(2, 3)], [(2, 3)]),
        (sparse_gradients, ["embedding"], "embedding", [(3,), (10, 3)], [(3, 3)]),
        (sparse_inputs, ["to_sparse", "_sparse_mm"], "_sparse_mm", *THREES),
        (complex_tensors, ["view_as_real", "mul"], "mul", [(2,), (2,)], [(2,)]),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_kinds_of_functions_and_tensors(
    work: Callable[[], Any], names: list[str], name: str, in_data: Any, out_grad: Any
) -> None:
    with FunctionKeeper() as hook:
        result = work()
        result.sum().backward()

    assert backward_pres(hook.events) == ["sum", *names]
    seen = hook.only(f"backward pre {name}")
    assert seen.call is hook.only(f"pre {name}").call
    assert (seen.in_data, seen.out_grad) == (in_data, out_grad)


def test_autocast() -> None:
    tensor, weight = x(), x(3, 3)
    with FunctionKeeper() as hook:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = F.linear(tensor, weight)
        output.sum().backward()

    assert output.dtype == torch.bfloat16
    assert without("device", hook.events[1:-1]) == [
        *forward("linear", "sum"),
        *backward("sum", "linear"),
    ]
    # The casts are a part of it: four nodes, one pair of callbacks.
    assert len(hook.only("backward pre linear").call.node_names) == 4


# torch.func

#: torch itself calls something that it has deprecated, when this is used first.
forward_mode = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def loss_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.sin().sum()


def sine_of(tensor: torch.Tensor) -> Any:
    return Sine.apply(tensor).sum()


def bare(tensor: torch.Tensor) -> Any:
    return torch.autograd.grad(sine_of(tensor.requires_grad_()), tensor)[0]


SUM_OF_SINES = [*forward("sin", "sum"), *backward("sum", "sin")]
#: A Function with setup_context is one call by the user, and one pair of callbacks.
ONE_SINE = [*forward("Sine", "sum"), *backward("sum", "Sine")]
#: ``torch.func`` makes a class that applies it.
MADE = ["pre SineGenerated", *forward("Sine"), "post SineGenerated"]
ONES = torch.ones(2, 3)
#: What is done, what comes of it, and what a hook is told.
TRANSFORMS: dict[str, tuple[Any, torch.Tensor, list[str]]] = {
    "vmap": (torch.func.vmap(loss_of), ONES.sin().sum(1), forward("sin", "sum")),
    "grad": (torch.func.grad(loss_of), ONES.cos(), SUM_OF_SINES),
    "jvp": (
        lambda t: torch.func.jvp(loss_of, (t,), (t,))[1],
        *(ONES.cos().sum(), forward("sin", "sum")),
    ),
    "a custom Function": (bare, ONES.cos(), ONE_SINE),
    "vmap of it": (torch.func.vmap(Sine.apply), ONES.sin(), forward("VmappedSine")),
    "grad of it": (
        torch.func.grad(sine_of),
        *(ONES.cos(), [*MADE, *forward("sum"), *backward("sum", "SineGenerated")]),
    ),
    "jvp of it": (
        lambda t: torch.func.jvp(Sine.apply, (t,), (t,))[1],
        *(ONES.cos(), MADE),
    ),
}


@forward_mode
@pytest.mark.parametrize(
    ("work", "result", "events"),
    [
        # The class that torch makes is not seen there (see docs/limits.md).
        pytest.param(*case, id=name, marks=[SEES_KEPT_APPLY] * (MADE[0] in case[2]))
        for name, case in TRANSFORMS.items()
    ],
)
def test_transforms_of_torch_func(
    work: Any, result: torch.Tensor, events: list[str]
) -> None:
    with FunctionRecorder() as hook:
        found = work(x().detach())

    assert torch.allclose(found, result)
    names = {event.split()[-1] for event in events} | {"custom_function_call"}
    assert [e for e in hook.events if e.split()[-1] in names] == events
