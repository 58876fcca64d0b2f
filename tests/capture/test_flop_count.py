"""Floating-point operations of calls: by hand, and by torch's own counter."""

from __future__ import annotations

import gc
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import flop_counter
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import torchprof_hooks
from tests.functions import Watching, count_flops, describe, x
from torchprof_hooks import Profile
from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.functions.call_description import describe_call
from torchprof_hooks.capture.functions.flop_count import (
    FlopCount,
    run_call,
)
from torchprof_hooks.capture.functions.function_calls import FunctionCalls
from torchprof_hooks.capture.functions.function_sites import SHAPES_KEPT
from torchprof_hooks.capture.functions.products import Flops
from torchprof_hooks.capture.torch_names import torch_utils
from torchprof_hooks.capture.tracking.make_tracker import new_tracker
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.names import Grouping, Phase
from torchprof_hooks.profiles.rows import Row

B, H, L, S, D = 2, 4, 6, 7, 8


@contextmanager
def mode_of(tracker: Tracker) -> Iterator[None]:
    """Have the tracker see functions meanwhile."""
    assert tracker.functions is not None
    mode = tracker.functions.mode_on_stack
    attachments.attach(mode, tracker)
    yield
    attachments.detach(mode, tracker)


def counted(function: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
    """Forward and backward operations of one call, as described and run again."""
    described = describe(function, *args, **kwargs)
    if described is None:
        return 0, 0
    flops = count_flops(described)
    return flops.forward, flops.backward


def row_of(profile: Profile, name: str) -> Row:
    (found,) = [row for row in profile.rows("call") if row.name == name]
    return found


def profiled(step: Callable[[], object], times: int = 1) -> Profile:
    with torchprof_hooks.profile(functions=True) as prof:
        for _ in range(times):
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


@pytest.mark.parametrize(
    ("function", "args", "forward", "backward"),
    [
        (F.linear, (x(5, 3), x(4, 3), x(4)), 2 * 5 * 3 * 4, 4 * 5 * 3 * 4),
        (F.linear, (x(2, 5, 3), x(4, 3)), 2 * 10 * 3 * 4, 4 * 10 * 3 * 4),
        # Nobody asks for the gradient of the input.
        (F.linear, (torch.ones(5, 3), x(4, 3)), 2 * 5 * 3 * 4, 2 * 5 * 3 * 4),
        (F.linear, (torch.ones(5, 3), torch.ones(4, 3)), 2 * 5 * 3 * 4, 0),
        (torch.matmul, (x(5, 3), x(3, 4)), 2 * 5 * 3 * 4, 4 * 5 * 3 * 4),
        (torch.Tensor.matmul, (x(6, 5, 3), x(3, 4)), 2 * 30 * 3 * 4, 4 * 30 * 3 * 4),
        (torch.mm, (x(5, 3), x(3, 4)), 2 * 5 * 3 * 4, 4 * 5 * 3 * 4),
        (torch.ops.aten.mm, (x(5, 3), x(3, 4)), 2 * 5 * 3 * 4, 4 * 5 * 3 * 4),
        (torch.ops.aten.mm.default, (x(5, 3), x(3, 4)), 2 * 5 * 3 * 4, 4 * 5 * 3 * 4),
        (torch.bmm, (x(6, 5, 3), x(6, 3, 4)), 2 * 6 * 5 * 3 * 4, 4 * 6 * 5 * 3 * 4),
        (torch.addmm, (x(4), x(5, 3), x(3, 4)), 2 * 5 * 3 * 4, 4 * 5 * 3 * 4),
        (
            torch.baddbmm,
            (x(6, 5, 4), x(6, 5, 3), x(6, 3, 4)),
            2 * 6 * 5 * 3 * 4,
            4 * 6 * 5 * 3 * 4,
        ),
        (
            torch.einsum,
            ("bij,bjk->bik", x(6, 5, 3), x(6, 3, 4)),
            2 * 6 * 5 * 3 * 4,
            4 * 6 * 5 * 3 * 4,
        ),
        # in channels * kernel * out channels, for each output: stride 2, padding 1
        (
            torch.conv1d,
            (x(2, 3, 9), x(5, 3, 3), None, 2, 1),
            2 * (3 * 3 * 5) * 2 * 5,
            4 * (3 * 3 * 5) * 2 * 5,
        ),
        (
            torch.conv2d,
            (x(2, 3, 9, 9), x(5, 3, 3, 3), x(5), (2, 2), (1, 1)),
            2 * (3 * 9 * 5) * 2 * 5 * 5,
            4 * (3 * 9 * 5) * 2 * 5 * 5,
        ),
        (
            torch.conv3d,
            (x(2, 3, 4, 4, 4), x(5, 3, 3, 3, 3)),
            2 * (3 * 27 * 5) * 2 * 2 * 2 * 2,
            4 * (3 * 27 * 5) * 2 * 2 * 2 * 2,
        ),
        # for each input
        (
            torch.conv_transpose2d,
            (x(2, 3, 9, 9), x(3, 5, 3, 3), None, 2, 1),
            2 * (3 * 9 * 5) * 2 * 9 * 9,
            4 * (3 * 9 * 5) * 2 * 9 * 9,
        ),
        # scores, and what they weigh; twice as much for the gradients
        (
            F.scaled_dot_product_attention,
            (x(B, H, L, D), x(B, H, S, D), x(B, H, S, D)),
            4 * B * H * L * S * D,
            8 * B * H * L * S * D,
        ),
        (
            F.scaled_dot_product_attention,
            (x(B, H, L, D), x(B, H, L, D), x(B, H, L, D), None, 0.1, True),
            4 * B * H * L * L * D,
            8 * B * H * L * L * D,
        ),
        (torch.linalg.multi_dot, ([x(5, 3), x(3, 4), x(4, 2)],), 108, 2 * 108),
        (torch.add, (x(5, 3), x(5, 3)), 0, 0),
        (F.embedding, (torch.tensor([1, 2]), x(5, 3)), 0, 0),
        (F.layer_norm, (x(5, 3), (3,), x(3), x(3)), 0, 0),
        # whole numbers do not float
        (torch.mm, (torch.ones(5, 3).long(), torch.ones(3, 4).long()), 0, 0),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_formulas(
    function: Any, args: tuple[Any, ...], forward: int, backward: int
) -> None:
    assert counted(function, *args) == (forward, backward)


def test_lstm_is_as_torch_counts_its_parts() -> None:
    steps, batch, width, hidden = 5, 2, 3, 4
    state = x(1, batch, hidden), x(1, batch, hidden)
    weights = [x(16, 3), x(16, 4), x(16), x(16)]
    call = x(steps, batch, width), state, weights, True, 1, 0.0, True, False, False
    forward = 2 * steps * batch * 4 * hidden * (width + hidden)
    assert counted(torch.lstm, *call) == (forward, 2 * forward)


def test_the_length_of_a_sequence_costs_nothing() -> None:
    weights = [x(16, 3), x(16, 4), x(16), x(16)]
    state = x(1, 2, 4), x(1, 2, 4)
    call = x(5_000, 2, 3), state, weights, True, 1, 0.0, True, False, False
    forward = 2 * 5_000 * 2 * 16 * (3 + 4)
    assert counted(torch.lstm, *call) == (forward, 2 * forward)


@pytest.mark.slow
def test_a_function_that_does_too_much_is_given_up() -> None:
    weights = [x(16, 3), x(16, 4), x(16), x(16)]
    state = x(1, 2, 4), x(1, 2, 4)
    call = x(5_000, 2, 3), state, weights, True, 1, 0.0, True, False, False
    assert run_call(_described(torch.lstm, *call)) == Flops(operators=4_001)


def test_multi_head_attention() -> None:
    attention = nn.MultiheadAttention(8, 2)
    inputs = x(6, 3, 8)

    def step() -> None:
        attention(inputs, inputs, inputs)[0].sum().backward()

    profile = profiled(step)
    with FlopCounterMode(display=False) as forward:
        outputs = attention(inputs, inputs, inputs)[0].sum()
    with FlopCounterMode(display=False) as backward:
        outputs.backward()
    assert forward.get_total_flops() == sum(flops(profile, "forward").values()) > 0
    assert backward.get_total_flops() == sum(flops(profile, "backward").values())


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(0.1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.qkv(self.before(x)).unflatten(2, (3, 2, -1))
        q, k, v = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        outputs: torch.Tensor = x + self.mlp(self.between(x))
        return outputs


class Gpt(nn.Module):
    def __init__(self, width: int = 16, recomputes: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.head = nn.Linear(width, 11, bias=False)
        self.recomputes = recomputes

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = (
                checkpoint(block, x, use_reentrant=False)
                if self.recomputes
                else block(x)
            )
        outputs: torch.Tensor = self.head(x)
        return outputs


TOKENS = torch.arange(14).reshape(2, 7) % 11


def train(model: nn.Module, inputs: torch.Tensor = TOKENS) -> None:
    model(inputs).sum().backward()


def test_a_transformer_takes_as_many_as_torch_counts_around_its_step() -> None:
    model = Gpt()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        loss = model(TOKENS).sum()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as backward:
        loss.backward()

    profile = profiled(lambda: train(model), times=3)

    assert sum(flops(profile, "forward").values()) == 3 * forward.get_total_flops() > 0
    assert sum(flops(profile, "backward").values()) == 3 * backward.get_total_flops()
    for by in ("module", "class", "function", "call"):
        assert sum(row.flops for row in profile.rows(by)) == sum(
            totals.flops for totals in profile.cells.values()
        )
    assert flops(profile, "forward", "module")["Gpt.head"] == 3 * 2 * 14 * 16 * 11
    assert (
        flops(profile, "backward", "class")["Linear"]
        == flops(profile, "backward")["linear"]
    )


def test_what_is_recomputed_counts_again() -> None:
    plain = profiled(lambda: train(Gpt()))
    again = profiled(lambda: train(Gpt(recomputes=True)))

    assert flops(again, "forward") == flops(plain, "forward")
    assert flops(again, "backward") == flops(plain, "backward")
    head = {"Gpt.head": 2 * 14 * 16 * 11}
    assert flops(again, "recompute", "module") == {
        name: number
        for name, number in flops(plain, "forward", "module").items()
        if name not in head
    }
    assert not flops(plain, "recompute")


def test_the_first_layer_has_half_the_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    profile = profiled(lambda: train(model, torch.ones(3, 4)))
    one = 2 * 3 * 4 * 4
    assert flops(profile, "backward", "module") == {
        "Sequential.0": one,
        "Sequential.1": 2 * one,
    }


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


def test_evaluation_has_no_backward() -> None:
    model = nn.Linear(4, 4)

    def step() -> None:
        with torch.no_grad():
            model(torch.ones(3, 4))

    profile = profiled(step, times=2)
    assert flops(profile, "forward") == {"linear": 2 * 2 * 3 * 4 * 4}
    assert not flops(profile, "backward")


def test_autocast() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            train(model, x(3, 4))

    profile = profiled(step)
    assert flops(profile, "forward") == {"linear": 2 * 2 * 3 * 4 * 4}
    assert flops(profile, "backward") == {"linear": 2 * 4 * 3 * 4 * 4}


def test_results_put_into_a_tensor_have_no_gradients() -> None:
    out = torch.zeros(5, 4)
    product = 2 * 5 * 3 * 4
    with torch.no_grad():
        profile = profiled(lambda: torch.mm(x(5, 3), x(3, 4), out=out))
    assert flops(profile, "forward") == {"mm": product}
    assert counted(torch.mm, x(5, 3), x(3, 4), out=out) == (product, 0)


def test_there_is_no_formula_for_sums_in_place() -> None:
    total = torch.zeros(5, 4)
    with FlopCounterMode(display=False) as reference:
        profile = profiled(lambda: total.addmm_(torch.ones(5, 3), torch.ones(3, 4)))
    assert not flops(profile, "forward")
    assert not reference.get_total_flops()


def test_calls_of_different_shapes_are_different_calls() -> None:
    model = nn.Linear(4, 4)

    def step() -> None:
        train(model, torch.ones(3, 4))
        train(model, torch.ones(5, 4))

    assert flops(profiled(step, times=2), "forward", "call") == {
        "Linear: linear(3x4, 4x4, 4)": 2 * 2 * 3 * 4 * 4,
        "Linear: linear(5x4, 4x4, 4)": 2 * 2 * 5 * 4 * 4,
    }


def test_calls_that_one_name_stands_for_are_not_guessed() -> None:
    def step(last: int) -> None:
        torch.linalg.multi_dot([*[x(2, 2), x(2, 3), x(3, 2)] * 2, x(2, last)])

    def both() -> None:
        step(2)
        step(9)

    assert flops(profiled(lambda: step(2)), "forward")
    assert not flops(profiled(both), "forward")


# Nothing of the user's is run, kept or changed


class Labelled(torch.Tensor):
    calls: ClassVar[list[str]] = []

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.calls.append(func.__name__)
        return super().__torch_function__(func, types, args, kwargs or {})


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

    labelled = torch.ones(3, 3).as_subclass(Labelled)
    with torchprof_hooks.profile(functions=True) as prof:
        labelled.matmul(torch.ones(3, 3))
    Labelled.calls.clear()
    assert not flops(prof.profile, "forward")
    assert not Labelled.calls


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
    assert not flops(profile, "forward")


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
    assert describe_call(torch.mm, (tensor, torch.ones(3, 3)), {}) is None


def test_examples_of_a_batch_are_left_alone() -> None:
    def step() -> None:
        torch.func.vmap(torch.mm)(torch.ones(5, 3, 3), torch.ones(5, 3, 3))

    assert not flops(profiled(step), "forward")


def test_objects_of_the_user_are_not_kept() -> None:
    class Scale(float):
        pass

    described = describe_call(torch.add, (x(3), x(3)), {"alpha": Scale(2.0)})
    assert described is None
    assert describe_call(lambda a, b: a @ b, (x(3, 3), x(3, 3)), {}) is None
    assert describe_call(None, (x(3, 3), x(3, 3)), {}) is None
    assert describe_call(torch.cat, ([x(3, 3)] * 1_000,), {}) is None


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


def test_a_call_that_fails_counts_as_nothing() -> None:
    assert counted(torch.mm, x(3, 4), x(3, 4)) == (0, 0)
    assert count_flops(_described(torch.mm, x(3, 4), x(3, 4))).operators < 100


def _described(function: Any, *args: Any) -> Any:
    described = describe_call(function, args, {})
    assert described is not None
    return described


# Costs


def test_calls_are_described_once_and_only_if_asked_for() -> None:
    tracker = new_tracker(functions=FunctionCalls(by_shapes=True, counts_flops=True))
    silent = new_tracker(functions=FunctionCalls(by_shapes=True))
    described: list[int] = []
    for followed in (tracker, silent):
        with mode_of(followed):
            for _ in range(3):
                torch.mm(torch.ones(5, 3), torch.ones(3, 4))
                described.append(id(followed.sites[-1].described))
    assert len(set(described[:3])) == 1
    assert set(described[3:]) == {id(None)}
    for followed, expected in ((tracker, 3 * 120), (silent, 0)):
        followed.log.fold()
        calls = followed.log.calls[: len(followed.sites)].tolist()
        assert sum(FlopCount().flops_of_sites(followed.sites, calls)) == expected


def test_without_patience_functions_that_would_have_to_be_run_are_named() -> None:
    tracker = new_tracker(functions=FunctionCalls(by_shapes=True, counts_flops=True))
    with mode_of(tracker):
        torch.einsum("ij,jk->ik", torch.ones(5, 3), torch.ones(3, 4))
        torch.mm(torch.ones(5, 3), torch.ones(3, 4))
    tracker.log.fold()
    calls = tracker.log.calls[: len(tracker.sites)].tolist()
    for patience_s, left_out, counted_in_all in (
        (0.0, {"einsum"}, 120),
        (9.0, (), 240),
    ):
        count = FlopCount(patience_s)
        for _ in range(2):  # what is known is known
            each = count.flops_of_sites(tracker.sites, calls)
            assert sum(each) == counted_in_all
            assert count.left_out == set(left_out)
            assert count.runs == (0 if left_out else 1)


def test_shapes_without_end_are_not_described_without_end() -> None:
    def step() -> None:
        for size in range(1, 200):
            torch.mm(torch.ones(size, 3), torch.ones(3, 4))

    profile = profiled(step)
    known = flops(profile, "forward", "call")
    assert len(known) == SHAPES_KEPT
    assert row_of(profile, "mm(other shapes)").flops == 0
    assert sum(known.values()) == sum(2 * size * 12 for size in range(1, 65))


def test_a_described_call_is_counted_once() -> None:
    model = nn.Sequential(*(nn.Linear(37, 37) for _ in range(20)))
    run_call.cache_clear()
    with torchprof_hooks.profile(functions=True) as prof:
        for _ in range(3):
            train(model, x(3, 37))
            torch.einsum("ij,kj->ik", x(3, 37), x(5, 37)).sum().backward()
    assert flops(prof.profile, "forward")["einsum"] == 3 * 2 * 3 * 37 * 5
    counts = run_call.cache_info().misses
    assert flops(prof.profile, "backward")["einsum"] == 3 * 4 * 3 * 37 * 5
    assert run_call.cache_info().misses == counts == 1  # the layers: not even once


def test_without_formulas_nothing_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(flop_counter, "flop_registry")
    torch_utils.flop_formulas.cache_clear()
    try:
        assert not flops(profiled(lambda: train(nn.Linear(4, 4), x(3, 4))), "forward")
    finally:
        torch_utils.flop_formulas.cache_clear()


def test_empty() -> None:
    assert Flops() == (0, 0, 0)
    assert FlopCount().flops_of_sites([], []) == []
