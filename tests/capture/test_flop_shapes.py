"""What shapes alone tell is what running a function tells, and torch's counter."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from tests.functions import describe, x
from tests.programs import TORCH, python
from torchprof_hooks.capture.functions.flop_count import run_call
from torchprof_hooks.capture.functions.products import flops_by_shapes

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


def const(*shape: int) -> torch.Tensor:
    """A tensor that needs no gradient."""
    return torch.ones(*shape)


def recurrent(
    kind: Any, value: torch.Tensor, learns_state: bool, **options: Any
) -> Call:
    """The call that a recurrent module makes."""
    module = kind(value.shape[2], 4, **options)
    directions = 2 if module.bidirectional else 1
    batch = value.shape[0 if module.batch_first else 1]
    make = x if learns_state else const
    hidden = make(directions * module.num_layers, batch, 4)
    is_lstm = kind is nn.LSTM
    functions: dict[Any, Any] = {
        nn.LSTM: torch.lstm,
        nn.GRU: torch.gru,
        nn.RNN: torch.rnn_tanh,
    }
    state = (hidden, make(*hidden.shape)) if is_lstm else hidden
    flat = [parameter for names in module.all_weights for parameter in names]
    return (
        functions[kind],
        (
            value,
            state,
            flat,
            module.bias,
            module.num_layers,
            0.0,
            True,
            module.bidirectional,
            module.batch_first,
        ),
        {},
    )


CALLS: Final[Sequence[Call]] = [
    (F.linear, (x(2, 3, 5), x(4, 5), x(4)), {}),
    (F.linear, (), {"input": x(3, 5), "weight": x(4, 5), "bias": None}),
    (torch.matmul, (x(2, 1, 3, 5), x(6, 5, 4)), {}),
    (torch.matmul, (x(3, 5), x(6, 5, 4)), {}),
    (torch.Tensor.matmul, (x(6, 3, 5), x(5, 4)), {}),
    (torch.Tensor.__matmul__, (x(3, 5), const(5, 4)), {}),
    (torch.Tensor.bmm, (const(6, 3, 5), x(6, 5, 4)), {}),
    (torch.Tensor.mm, (const(3, 5), const(5, 4)), {}),
    (torch.addmm, (x(4), x(3, 5), x(5, 4)), {"beta": 0.5, "alpha": 2}),
    (torch.baddbmm, (const(6, 3, 4), x(6, 3, 5), const(6, 5, 4)), {}),
    (torch.conv1d, (x(3, 9), x(4, 3, 2)), {}),
    (torch.conv1d, (x(2, 3, 9), x(4, 3, 2), x(4), 2, "valid", 3), {}),
    (torch.conv2d, (x(2, 6, 9, 8), x(4, 3, 3, 2), None, 1, "same", 1, 2), {}),
    (torch.conv2d, (const(2, 3, 9, 8), x(4, 3, 3, 2), None, (2, 1), (1, 0)), {}),
    (torch.conv2d, (x(2, 3, 9, 8), const(4, 3, 3, 2)), {"dilation": (2, 3)}),
    (torch.conv3d, (x(2, 3, 4, 5, 6), x(4, 3, 2, 2, 2), x(4), [1, 2, 1]), {}),
    (torch.conv_transpose1d, (x(2, 3, 9), x(3, 4, 2), x(4), 3, 1, 2), {}),
    (torch.conv_transpose2d, (x(2, 4, 9, 8), x(4, 3, 3, 2), None, 2, 1, 1, 2), {}),
    (torch.conv_transpose3d, (x(2, 3, 4, 4, 4), const(3, 4, 2, 2, 2)), {}),
    (F.scaled_dot_product_attention, (x(2, 3, 5, 4), x(2, 3, 6, 4), x(2, 3, 6, 7)), {}),
    (
        F.scaled_dot_product_attention,
        (const(2, 3, 5, 4), const(2, 3, 6, 4), x(2, 3, 6, 4)),
        {"attn_mask": const(5, 6)},
    ),
    (
        F.scaled_dot_product_attention,
        (const(2, 3, 5, 4), x(2, 3, 5, 4), const(2, 3, 5, 4)),
        {"is_causal": True, "scale": 0.5},
    ),
    recurrent(nn.LSTM, x(5, 2, 3), True),
    recurrent(nn.LSTM, const(5, 2, 3), False, num_layers=2),
    recurrent(nn.LSTM, x(5, 2, 3), False, bidirectional=True, num_layers=2),
    recurrent(nn.LSTM, x(5, 2, 3), True, bias=False, batch_first=True),
    recurrent(nn.GRU, x(1, 2, 3), False, num_layers=3),
    recurrent(nn.GRU, const(4, 2, 3), True, bidirectional=True),
    recurrent(nn.RNN, const(4, 2, 3), False, batch_first=True),
]


def name_of(call: object) -> str:
    return getattr(call[0], "__name__", "?") if isinstance(call, tuple) else "?"


@pytest.mark.parametrize("call", CALLS, ids=name_of)
def test_shapes_tell_what_running_it_tells(call: Call) -> None:
    described = describe(call[0], *call[1], **call[2])
    assert described is not None
    by_shapes = flops_by_shapes(described)
    assert by_shapes is not None
    ran = run_call(described)
    assert ran.forward > 0
    assert by_shapes[:2] == ran[:2]


@pytest.mark.parametrize(
    ("call", "products"),
    [
        # Of each output: the channels of its group, by the kernel.
        ((torch.conv1d, (2, 6, 9), (4, 3, 2), {"groups": 2}), 2 * 4 * 8 * 3 * 2),
        ((torch.conv2d, (2, 8, 5, 5), (8, 1, 3, 3), {"groups": 8}), 2 * 8 * 9 * 9),
        (
            (torch.conv2d, (2, 8, 5, 5), (16, 1, 3, 3), {"groups": 8, "stride": 2}),
            2 * 16 * 4 * 9,
        ),
        # Of each input: as many outputs of its group, by the kernel.
        (
            (torch.conv_transpose1d, (2, 6, 9), (6, 2, 2), {"groups": 3}),
            2 * 6 * 9 * 2 * 2,
        ),
        (
            (torch.conv_transpose2d, (2, 8, 5, 5), (8, 1, 3, 3), {"groups": 8}),
            2 * 8 * 25 * 9,
        ),
    ],
)
@pytest.mark.parametrize("gradients", [0, 1, 2])
def test_groups_of_a_convolution_share_no_products(
    call: tuple[Any, tuple[int, ...], tuple[int, ...], dict[str, int]],
    products: int,
    gradients: int,
) -> None:
    """By hand: torch's counter does not divide the weight's gradient by the groups."""
    function, value, weight, options = call
    make_value, make_weight = ((const, const), (const, x), (x, x))[gradients]
    tensors = make_value(*value), make_weight(*weight)
    described = describe(function, *tensors, **options)
    assert described is not None
    by_shapes = flops_by_shapes(described)
    assert by_shapes is not None
    assert by_shapes[:2] == (2 * products, gradients * 2 * products)
    assert run_call(described)[:2] == by_shapes[:2]


@pytest.mark.parametrize("groups", [1, 2])
def test_torchs_counter_differs_for_groups_alone(groups: int) -> None:
    """It has `groups` times too many for the weight's gradient, as long as torch does
    not mend its formula."""
    value, weight = const(2, 6, 9, 8), x(4, 6 // groups, 3, 2)
    described = describe(torch.conv2d, value, weight, groups=groups)
    assert described is not None
    output = torch.conv2d(value, weight, groups=groups).sum()
    with FlopCounterMode(display=False) as reference:
        output.backward()

    ours = run_call(described).backward
    assert reference.get_total_flops() in (ours, groups * ours)


def test_products_of_random_shapes() -> None:
    draw = random.Random(0)
    told = 0
    for _ in range(60):
        m, k, n = (draw.randint(1, 5) for _ in range(3))
        batch = [draw.randint(1, 3) for _ in range(draw.randint(0, 2))]
        other = [draw.choice((1, size)) for size in batch[draw.randint(0, 1) :]]
        left = draw.choice((x, const))(*batch, m, k)
        right = draw.choice((x, const))(*other, k, n)
        for function, args in (
            (torch.matmul, (left, right)),
            (F.linear, (left, right.new_ones(n, k))),
        ):
            described = describe(function, *args)
            assert described is not None
            found = flops_by_shapes(described)
            assert found is not None
            assert found[:2] == run_call(described)[:2]
            told += 1
    assert told == 120


@pytest.mark.parametrize(
    "call",
    [
        (torch.mm, (x(3, 4), x(3, 4)), {}),
        (F.linear, (x(3, 4), x(5, 3)), {}),
        (torch.matmul, (x(4), x(4, 3)), {}),
        (torch.mm, (const(3, 4), const(4, 3)), {"out": const(3, 3)}),
        (torch.Tensor.addmm_, (const(3, 3), const(3, 4), const(4, 3)), {}),
        (torch.conv2d, (x(2, 3, 9, 8), x(4, 3, 3, 2)), {"stride": (1, 2, 3)}),
        (torch.einsum, ("ij,jk->ik", x(3, 4), x(4, 3)), {}),
        (torch.ops.aten.mm.default, (x(3, 4), x(4, 3)), {}),
        (F.multi_head_attention_forward, (x(3, 4), x(3, 4)), {}),
        recurrent(nn.LSTM, x(5, 2, 3), True, proj_size=2),
    ],
    ids=name_of,
)
def test_of_other_calls_shapes_tell_nothing(call: Call) -> None:
    described = describe(call[0], *call[1], **call[2])
    assert described is not None
    assert flops_by_shapes(described) is None


INDEX: Final = torch.zeros(3, 4, dtype=torch.long)
NONE: Final[Sequence[tuple[Callable[..., Any], tuple[Any, ...]]]] = [
    (torch.add, (x(3, 4), x(3, 4))),
    (torch.Tensor.mul, (x(3, 4), x(4))),
    (torch.Tensor.__sub__, (x(3, 4), x(4))),
    (torch.Tensor.div, (x(3, 4), x(3, 4))),
    (torch.Tensor.add_, (const(3, 4), x(3, 4))),
    (torch.Tensor.__iadd__, (const(3, 4), x(3, 4))),
    (torch.lerp, (x(3, 4), x(3, 4), 0.5)),
    (torch.addcmul, (x(3, 4), x(3, 4), x(3, 4))),
    (torch.pow, (x(3, 4), x(3, 4))),
    (torch.where, (INDEX == 0, x(3, 4), x(3, 4))),
    (torch.cat, ([x(3, 4), x(3, 4)],)),
    (torch.stack, ([x(3, 4), x(3, 4)],)),
    (torch.maximum, (x(3, 4), x(3, 4))),
    (F.layer_norm, (x(3, 4), (4,), x(4), x(4))),
    (F.batch_norm, (x(3, 4), const(4), const(4), x(4), x(4), True)),
    (F.group_norm, (x(3, 4), 2, x(4), x(4))),
    (F.instance_norm, (x(3, 4, 5), None, None, x(4), x(4))),
    (F.mse_loss, (x(3, 4), x(3, 4))),
    (F.l1_loss, (x(3, 4), x(3, 4))),
    (F.smooth_l1_loss, (x(3, 4), x(3, 4))),
    (F.huber_loss, (x(3, 4), x(3, 4))),
    (F.kl_div, (x(3, 4), const(3, 4), None, None, "batchmean")),
    (F.binary_cross_entropy, (x(3, 4).sigmoid(), const(3, 4))),
    (F.binary_cross_entropy_with_logits, (x(3, 4), const(3, 4))),
    (F.cross_entropy, (x(3, 4), const(3, 4))),
    (F.nll_loss, (x(3, 4), INDEX[:, 0], const(4))),
    (F.cosine_similarity, (x(3, 4), x(3, 4))),
    (F.pairwise_distance, (x(3, 4), x(3, 4))),
    (F.triplet_margin_loss, (x(3, 4), x(3, 4), x(3, 4))),
    (F.prelu, (x(3, 4), x(4))),
    (torch.scatter, (x(3, 4), 0, INDEX, x(3, 4))),
    (torch.index_add, (x(3, 4), 0, INDEX[:, 0], x(3, 4))),
    (torch.Tensor.copy_, (const(3, 4), x(3, 4))),
    (torch.Tensor.expand_as, (x(3, 1), x(3, 4))),
    (torch.hstack, ([x(3, 4), x(3, 4)],)),
    (torch.block_diag, (x(3, 4), x(3, 4))),
    (torch._foreach_add, ([const(3), const(4)], [const(3), const(4)])),
    (torch._foreach_norm, ([const(3), const(4)],)),
]


@pytest.mark.parametrize(("function", "args"), NONE, ids=lambda v: name_of((v,)))
def test_functions_without_products_have_none(
    function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    described = describe(function, *args)
    assert described is not None
    assert flops_by_shapes(described) == (0, 0, 0)
    with FlopCounterMode(display=False) as reference:
        result = function(*args)
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.sum().backward()
    assert reference.get_total_flops() == 0


FIRST: Final = """
import sys, torch
import torch.nn.functional as F
from tests.functions import count_flops, describe
before = set(sys.modules)
import torch.utils.flop_counter  # torch's own counter loads Triton, where that is
counter = set(sys.modules)
x, w = torch.ones(2, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
for function, other in ((F.linear, w), (torch.matmul, w), (torch.add, x)):
    count_flops(describe(function, x, other))
loaded = set(sys.modules) - before
print("torch._dynamo" in loaded, "sympy" in loaded, len(loaded - counter) < 10)
"""


@pytest.mark.slow
def test_the_compiler_is_not_loaded_for_it() -> None:
    done = python("-c", FIRST, loaded=TORCH)
    assert (done.stdout, done.stderr) == ("False False True\n", "")
