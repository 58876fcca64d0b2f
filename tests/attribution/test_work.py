"""Floating-point operations of calls: by hand, and by torch's own counter."""

from __future__ import annotations

import gc
import random
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import flop_counter
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode

import torchprof_hooks
from tests.cores import NATIVE_CORE
from tests.functions import Logged, Watching, x
from tests.thorough import THOROUGH
from torchprof_hooks import Profile
from torchprof_hooks.instruments.functions import operators as operator_calls
from torchprof_hooks.instruments.functions import work
from torchprof_hooks.instruments.functions.operators import SHAPES_KEPT
from torchprof_hooks.kernel.torch_names import functions
from torchprof_hooks.profiles.names import Grouping, Phase

pytestmark = NATIVE_CORE

B, H, L, S, D = 2, 4, 6, 7, 8


def const(*shape: int) -> torch.Tensor:
    """A tensor that needs no gradient."""
    return torch.ones(*shape)


def first(outputs: Any) -> torch.Tensor:
    found: torch.Tensor = outputs[0] if isinstance(outputs, tuple) else outputs
    return found


def counted(function: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
    """Forward and backward operations of one call, as a profile tells."""

    def step() -> None:
        output = first(function(*args, **kwargs))
        if output.requires_grad:
            output.sum().backward()

    profile = profiled(step)
    return of_all(profile, "forward"), of_all(profile, "backward")


def by_torch(function: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
    """The same, as torch's counter tells."""
    with FlopCounterMode(display=False) as forward:
        output = first(function(*args, **kwargs))
    with FlopCounterMode(display=False) as backward:
        if output.requires_grad:
            output.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


def profiled(
    step: Callable[[], object], times: int = 1, *, check: bool = True
) -> Profile:
    """check: whether what the step raises is to be seen."""
    with torchprof_hooks.profile(functions=True) as prof:
        for _ in range(times):
            with suppress(*[] if check else [Exception]):
                step()
    return prof.profile


def flops(profile: Profile, phase: Phase, by: Grouping = "function") -> dict[str, int]:
    """Operations by row, of those that have any in this phase."""
    found = {
        row.name: row.phases[phase].flops
        for row in profile.rows(by)
        if phase in row.phases
    }
    return {name: number for name, number in found.items() if number}


def of_all(profile: Profile, phase: Phase) -> int:
    return sum(flops(profile, phase).values())


@pytest.mark.parametrize("fake_first", [False, True])
def test_the_gradients_of_a_layer_are_those_that_each_call_asks_for(
    fake_first: bool,
) -> None:
    """A discriminator gets data, which need no gradient, and what a generator made; a
    layer is frozen for a while."""
    layer, one = nn.Linear(3, 4), 2 * 5 * 3 * 4
    calls = [x(5, 3), const(5, 3)] if fake_first else [const(5, 3), x(5, 3)]

    def step() -> None:
        for inputs in calls:
            layer(inputs).sum().backward()
        layer.requires_grad_(False)
        layer(x(5, 3)).sum().backward()
        layer.requires_grad_(True)

    profile = profiled(step, times=3)
    assert flops(profile, "forward", "module") == {"Linear": 3 * 3 * one}
    assert flops(profile, "backward", "module") == {"Linear": 3 * (1 + 2 + 1) * one}
    calls_of = {row.name: row.calls for row in profile.rows("call")}
    assert calls_of["Linear: linear(5x3, 4x3, 4)"] == 9


SDPA = F.scaled_dot_product_attention


@pytest.mark.parametrize(
    ("function", "args", "forward", "gradients"),
    [
        (F.linear, (x(2, 5, 3), x(4, 3), x(4)), 2 * 10 * 3 * 4, 2),
        # Nobody asks for the gradient of the input.
        (F.linear, (const(5, 3), x(4, 3)), 2 * 5 * 3 * 4, 1),
        (F.linear, (const(5, 3), const(4, 3)), 2 * 5 * 3 * 4, 0),
        (torch.Tensor.matmul, (x(6, 5, 3), x(3, 4)), 2 * 30 * 3 * 4, 2),
        (torch.mm, (x(5, 3), x(3, 4)), 2 * 5 * 3 * 4, 2),
        (torch.bmm, (x(6, 5, 3), x(6, 3, 4)), 2 * 6 * 5 * 3 * 4, 2),
        (torch.baddbmm, (x(6, 5, 4), x(6, 5, 3), x(6, 3, 4)), 2 * 6 * 5 * 3 * 4, 2),
        # in channels * kernel * out channels, for each output: stride 2, padding 1
        (
            torch.conv2d,
            (x(2, 3, 9, 9), x(5, 3, 3, 3), x(5), (2, 2), (1, 1)),
            2 * (3 * 9 * 5) * 2 * 5 * 5,
            2,
        ),
        # for each input
        (
            torch.conv_transpose2d,
            (x(2, 3, 9, 9), x(3, 5, 3, 3), None, 2, 1),
            2 * (3 * 9 * 5) * 2 * 9 * 9,
            2,
        ),
        # scores, and what they weigh
        (
            SDPA,
            (x(B, H, L, D), x(B, H, S, D), x(B, H, S, D)),
            4 * B * H * L * S * D,
            2,
        ),
        (
            SDPA,
            (x(B, H, L, D), x(B, H, L, D), x(B, H, L, D), None, 0.1, True),
            4 * B * H * L * L * D,
            2,
        ),
        (torch.add, (x(5, 3), x(5, 3)), 0, 0),
        (F.embedding, (torch.tensor([1, 2]), x(5, 3)), 0, 0),
        (F.layer_norm, (x(5, 3), (3,), x(3), x(3)), 0, 0),
        # whole numbers do not float
        (torch.mm, (const(5, 3).long(), const(3, 4).long()), 0, 0),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_formulas(
    function: Any, args: tuple[Any, ...], forward: int, gradients: int
) -> None:
    """Each gradient takes as many as forward."""
    assert counted(function, *args) == (forward, gradients * forward)


@pytest.mark.parametrize(
    "gradients", [pytest.param(0, marks=THOROUGH), pytest.param(1, marks=THOROUGH), 2]
)
@pytest.mark.parametrize(
    ("function", "value", "weight", "options", "products"),
    [
        # Of each output: the channels of its group, by the kernel.
        (torch.conv1d, (2, 6, 9), (4, 3, 2), {"groups": 2}, 2 * 4 * 8 * 3 * 2),
        (torch.conv2d, (2, 8, 5, 5), (8, 1, 3, 3), {"groups": 8}, 2 * 8 * 9 * 9),
        (
            torch.conv2d,
            (2, 8, 5, 5),
            (16, 1, 3, 3),
            {"groups": 8, "stride": 2},
            2 * 16 * 4 * 9,
        ),
        # Of each input: as many outputs of its group, by the kernel.
        (
            torch.conv_transpose2d,
            (2, 8, 5, 5),
            (8, 1, 3, 3),
            {"groups": 8},
            2 * 8 * 25 * 9,
        ),
    ],
)
def test_groups_of_a_convolution_share_no_products(  # noqa: PLR0917
    gradients: int,
    function: Any,
    value: tuple[int, ...],
    weight: tuple[int, ...],
    options: dict[str, int],
    products: int,
) -> None:
    """By hand: torch's counter does not divide the weight's gradient by the groups."""
    make_value, make_weight = ((const, const), (const, x), (x, x))[gradients]
    found = counted(function, make_value(*value), make_weight(*weight), **options)
    assert found == (2 * products, gradients * 2 * products)


@pytest.mark.parametrize(
    ("function", "args", "options"),
    [
        (torch.conv1d, (x(3, 9), x(4, 3, 2)), {}),
        (torch.conv1d, (x(2, 3, 9), x(4, 3, 2), x(4), 2, "valid", 3), {}),
        (torch.conv2d, (x(2, 3, 9, 8), x(4, 3, 3, 3), None, 1, "same"), {}),
        (torch.conv2d, (const(2, 3, 9, 8), x(4, 3, 3, 2), None, (2, 1), (1, 0)), {}),
        (torch.conv2d, (x(2, 3, 9, 8), const(4, 3, 3, 2)), {"dilation": (2, 3)}),
        (torch.conv3d, (x(2, 3, 4, 5, 6), x(4, 3, 2, 2, 2), x(4), [1, 2, 1]), {}),
        (torch.conv_transpose1d, (x(2, 3, 9), x(3, 4, 2), x(4), 3, 1, 2), {}),
        (torch.conv_transpose3d, (x(2, 3, 4, 4, 4), const(3, 4, 2, 2, 2)), {}),
        (torch.matmul, (x(2, 1, 3, 5), x(6, 5, 4)), {}),
        (torch.addmm, (x(4), x(3, 5), const(5, 4)), {"beta": 0.5, "alpha": 2}),
    ],
)
def test_products_take_as_many_as_torch_counts(
    function: Any, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    assert counted(function, *args, **options) == by_torch(function, *args, **options)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (torch.einsum, ("bij,bjk->bik", x(6, 5, 3), x(6, 3, 4))),
        (torch.einsum, ("ij,kj->ik", const(5, 3), x(4, 3))),
        (torch.linalg.multi_dot, ([x(5, 3), x(3, 4), x(4, 2)],)),
        (torch.tensordot, (x(5, 3, 2), x(3, 2, 4))),
        (nn.MultiheadAttention(8, 2), (x(6, 3, 8), x(6, 3, 8), x(6, 3, 8))),
    ],
)
def test_what_a_function_comes_down_to_is_counted(
    function: Any, args: tuple[Any, ...]
) -> None:
    found = counted(function, *args)
    assert found == by_torch(function, *args)
    assert found[0]


def test_products_of_random_shapes() -> None:
    draw = random.Random(0)
    for _ in range(20):
        m, k, n = (draw.randint(1, 5) for _ in range(3))
        batch = [draw.randint(1, 3) for _ in range(draw.randint(0, 2))]
        other = [draw.choice((1, size)) for size in batch[draw.randint(0, 1) :]]
        left = draw.choice((x, const))(*batch, m, k)
        right = draw.choice((x, const))(*other, k, n)
        assert counted(torch.matmul, left, right) == by_torch(torch.matmul, left, right)


def train(model: nn.Module, inputs: torch.Tensor) -> None:
    model(inputs).sum().backward()


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(torch.relu(self.up(x)))
        return y


ONE_PRODUCT = 2 * 3 * 8 * 16


@pytest.mark.parametrize("saves", [True, False])
def test_a_product_that_a_selective_checkpoint_has_saved_is_none(saves: bool) -> None:
    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        keeps = saves and operator is torch.ops.aten.addmm.default
        return (CheckpointPolicy.PREFER_RECOMPUTE, CheckpointPolicy.MUST_SAVE)[keeps]

    contexts = partial(create_selective_checkpoint_contexts, policy)
    model = nn.Sequential(Two(), nn.GELU())
    profile = profiled(
        lambda: (
            checkpoint(model, x(3, 8), use_reentrant=False, context_fn=contexts)
            .sum()
            .backward()
        ),
        2,
    )
    products = 0 if saves else 2
    assert of_all(profile, "recompute") == 2 * products * ONE_PRODUCT
    assert flops(profile, "forward") == {"linear": 2 * 2 * ONE_PRODUCT}
    assert flops(profile, "backward") == {"linear": 2 * 4 * ONE_PRODUCT}


def test_frozen_layers_have_the_gradients_of_their_inputs_only() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].requires_grad_(False)

    def step() -> None:
        with torch.no_grad():  # the first that is seen of it: results do not say
            model[1:](torch.ones(3, 4))
        train(model, torch.ones(3, 4))

    one = 2 * 3 * 4 * 4
    assert flops(profiled(step), "backward", "module") == {
        "Sequential.0": one,
        "Sequential.1": one,
        "Sequential.2": 2 * one,
    }


@pytest.mark.parametrize(
    ("context", "gradients"),
    [(torch.no_grad(), 0), (torch.autocast("cpu", torch.bfloat16), 2)],
    ids=["evaluation", "autocast"],
)
def test_in_a_context(context: Any, gradients: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def step() -> None:
        with context:
            loss = model(x(3, 4)).sum()
        if gradients:
            loss.backward()

    profile = profiled(step, times=2)
    product = 2 * 3 * 4 * 4
    assert of_all(profile, "forward") == 2 * 2 * product
    assert of_all(profile, "backward") == gradients * 2 * 2 * product


# Nothing of the user's is run, kept or changed


class Square(torch.autograd.Function):
    runs = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        Square.runs += 1
        return x @ y

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, gradient


def test_code_of_the_user_is_not_run_again() -> None:
    Square.runs = 0
    profile = profiled(lambda: Square.apply(x(3, 3), x(3, 3)).sum().backward())
    assert Square.runs == 1
    assert flops(profile, "forward") == {"matmul": 2 * 27}  # inside of it
    assert not flops(profile, "backward")

    logged = torch.ones(3, 3).as_subclass(Logged)
    with torchprof_hooks.profile(functions=True) as prof:
        logged.matmul(torch.ones(3, 3))
    Logged.asked.clear()
    assert flops(prof.profile, "forward") == {"matmul": 2 * 27}
    assert not Logged.asked


def test_operators_of_the_user_are_not_run_again() -> None:
    runs = []

    @torch.library.custom_op("torchprof_hooks_tests::product", mutates_args=())
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        runs.append("real")
        return a @ b

    @product.register_fake
    def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        runs.append("fake")
        return a @ b

    operator = torch.ops.torchprof_hooks_tests.product
    profile = profiled(lambda: operator(torch.ones(3, 3), torch.ones(3, 3)))
    assert [row.implementation for row in profile.rows("function")].count("op") == 1
    assert runs == ["real"]
    assert of_all(profile, "forward") == 54


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(3, 3).to_sparse(),
        lambda: torch.nested.nested_tensor([torch.ones(3, 3)], layout=torch.jagged),
        lambda: torch.quantize_per_tensor(torch.ones(3, 3), 1.0, 0, torch.qint8),
    ],
    ids=["sparse", "nested", "quantized"],
)
def test_tensors_that_are_no_arrays_are_left_alone(make: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these are betas, or on their way out
        tensor = make()
    profile = profiled(lambda: torch.matmul(tensor, torch.ones(3, 3)), check=False)
    # Of the nested one, the native core sees what it is made of.
    assert of_all(profile, "forward") == 2 * 27 * tensor.is_nested


def test_examples_of_a_batch_are_not_taken_for_one() -> None:
    def step() -> None:
        torch.func.vmap(torch.mm)(torch.ones(5, 3, 3), torch.ones(5, 3, 3))

    assert of_all(profiled(step), "forward") == 5 * 2 * 27


def test_nothing_is_kept_alive() -> None:
    gc.collect()
    gc.disable()
    try:
        with torchprof_hooks.profile(functions=True) as prof:
            model, inputs = nn.Linear(4, 4), torch.ones(3, 4)
            outputs = model(inputs)
            outputs.sum().backward()
            alive = [weakref.ref(each) for each in (model, inputs, outputs)]
            alive.append(weakref.ref(model.weight))
            assert flops(prof.profile, "backward")
            del model, inputs, outputs
        assert [reference() for reference in alive] == [None] * len(alive)
    finally:
        gc.enable()


def test_counting_changes_nothing() -> None:
    q, k, v = x(1, 1, 13, 8), x(1, 1, 17, 8), x(1, 1, 17, 8)
    with torchprof_hooks.profile(functions=True) as prof:
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).sum().backward()
    states = torch.get_rng_state(), random.getstate()
    filters, threads = list(warnings.filters), threading.active_count()
    with (
        torch.device("cpu"),
        torch.autocast("cpu", torch.bfloat16),
        torch.no_grad(),
        Watching() as mode,
        torchprof_hooks.profile(functions=True) as other,
    ):
        profile = prof.profile
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (warnings.filters, threading.active_count()) == (filters, threads)
    assert q.grad is not None
    assert flops(profile, "forward") == {
        "scaled_dot_product_attention": 4 * 13 * 17 * 8
    }
    assert "scaled_dot_product_attention" not in {f.__name__ for f in mode.seen}
    assert not [row for row in other.profile.rows("function") if row.flops]


# Costs


def test_shapes_without_end_are_one_row_and_counted() -> None:
    def step() -> None:
        for size in range(1, 200):
            torch.mm(torch.ones(size, 3), torch.ones(3, 4))

    profile = profiled(step)
    known = flops(profile, "forward", "call")
    rest = sum(2 * size * 12 for size in range(SHAPES_KEPT + 1, 200))
    assert len(known) == SHAPES_KEPT + 1
    assert known["mm(other shapes)"] == rest
    [others] = [row for row in profile.rows("call") if row.name == "mm(other shapes)"]
    assert others.calls == 199 - SHAPES_KEPT
    assert flops(profile, "forward") == {"mm": sum(2 * n * 12 for n in range(1, 200))}


def convolve(size: int) -> torch.Tensor:
    return F.conv2d(x(2, 3, size, 9), x(4, 3, 3, 3), stride=2, padding=1)


def attend(size: int) -> torch.Tensor:
    return SDPA(x(B, H, L, D), x(B, H, size, D), x(B, H, size, D))


@pytest.mark.parametrize(
    "function",
    [
        lambda size: F.linear(x(size, 2, 3), x(4, 3), x(4)),
        pytest.param(lambda size: x(2, size, 3) @ x(2, 3, 4), marks=THOROUGH),
        pytest.param(
            lambda size: torch.einsum("ij,kj->ik", x(size, 3), x(4, 3)), marks=THOROUGH
        ),
        *(convolve, attend),
    ],
    ids=["linear", "matmul", "einsum", "convolution", "attention"],
)
def test_shapes_without_end_are_counted_like_the_first(
    function: Callable[[int], torch.Tensor],
) -> None:
    """Forward and backward, of calls with gradients and without."""

    def step(size: int) -> None:
        function(size).sum().backward()
        with torch.no_grad():
            function(size)

    sizes = range(3, SHAPES_KEPT + 13)
    alone = [profiled(partial(step, size)) for size in sizes]
    together = profiled(lambda: [*map(step, sizes)])
    for phase in ("forward", "backward"):
        expected = sum(of_all(profile, phase) for profile in alone)
        assert of_all(together, phase) == expected > 0


def test_what_a_program_registers_is_counted_beyond_the_shapes_kept() -> None:
    @torch.library.custom_op("torchprof_hooks_tests::twice", mutates_args=())
    def twice(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b

    packet = torch.ops.torchprof_hooks_tests.twice
    count = lambda a, b, *_, out_val=None, **__: 7 * a[0]  # noqa: E731
    flop_counter.register_flop_formula(packet, get_raw=True)(count)
    sizes = range(1, SHAPES_KEPT + 9)
    try:
        profile = profiled(
            lambda: [packet(torch.ones(n), torch.ones(n)) for n in sizes]
        )
    finally:
        del flop_counter.flop_registry[packet]
    assert of_all(profile, "forward") == 7 * sum(sizes)


def test_python_is_not_asked_for_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for what the core has no formula for, once for each operator."""
    asked: list[str] = []
    has_formula = work.has_formula

    def look_up(operator: str) -> bool:
        asked.append(operator)
        return has_formula(operator)

    monkeypatch.setattr(operator_calls, "has_formula", look_up)
    model = nn.Sequential(*(nn.Linear(37, 37) for _ in range(20)))
    profiled(lambda: train(model, const(3, 37)), times=3)
    assert "aten::linear" in asked
    assert len(asked) == len(set(asked))
    assert "aten::addmm" not in asked


def test_without_formulas_only_products_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(functions, "_formulas", dict)
    profile = profiled(lambda: torch.mm(torch.ones(3, 4), torch.ones(4, 5)))
    assert of_all(profile, "forward") == 2 * 60
