"""Bytes that calls read and write: by hand, and by what really comes out of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree

import torchprof_hooks
from tests.functions import describe, x
from torchprof_hooks.capture.functions.traffic import (
    CallTraffic,
    Moved,
    traffic_by_shapes,
)
from torchprof_hooks.profiles.operations.traffic import Traffic

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
T = torch.Tensor


def traffic(function: Any, *args: Any, **kwargs: Any) -> CallTraffic:
    described = describe(function, *args, **kwargs)
    assert described is not None
    return traffic_by_shapes(described)


def whole(*shape: int) -> T:
    return torch.ones(shape, dtype=torch.int64)


def const(*shape: int) -> T:
    return torch.ones(shape)


# By hand, in bytes: float32 has four


def test_linear() -> None:
    """6x5 times 4x5, with bias."""
    found = traffic(F.linear, x(6, 5), x(4, 5), x(4))

    given, out = 4 * 30 + 4 * 20 + 4 * 4, 4 * 24
    assert found.forward == Moved(given, out)
    # The gradient of the output, the weight and the input; three gradients.
    assert found.backward == Moved(out + 4 * 20 + 4 * 30, given)


def test_linear_of_the_data() -> None:
    """The first layer of a model: its input asks for no gradient."""
    found = traffic(F.linear, const(6, 5), x(4, 5), x(4))

    assert found.backward == Moved(4 * 24 + 4 * 30, 4 * 20 + 4 * 4)


def test_convolution() -> None:
    """2 images of 3x9x8 become 4x5x4: with a stride of 2, and padding of 1."""
    found = traffic(torch.conv2d, x(2, 3, 9, 8), x(4, 3, 3, 3), None, 2, 1)

    given, out = 4 * 432 + 4 * 108, 4 * 160
    assert found == (Moved(given, out), Moved(out + given, given))


def test_attention() -> None:
    """2 heads of 6 queries and 5 keys of 8 numbers: no matrix of scores is moved."""
    query, keys, values = x(1, 2, 6, 8), x(1, 2, 5, 8), x(1, 2, 5, 4)
    found = traffic(F.scaled_dot_product_attention, query, keys, values)

    given, out = 4 * (96 + 80 + 40), 4 * 48
    assert found == (Moved(given, out), Moved(out + given, given))


def test_sum_of_two() -> None:
    assert traffic(T.add, x(8, 4), x(4)).forward == Moved(4 * 32 + 4 * 4, 4 * 32)


def test_a_tensor_that_is_given_twice_is_read_once() -> None:
    value = x(8, 4)

    assert traffic(T.mul, value, value).forward == Moved(4 * 32, 4 * 32)
    assert traffic(torch.cat, [value, value]).forward == Moved(4 * 32, 4 * 64)
    assert traffic(T.mul, value, x(8, 4)).forward == Moved(4 * 64, 4 * 32)


@pytest.mark.parametrize("average", [True, False])
def test_self_attention_of_several_heads(average: bool) -> None:
    """5 places, 3 examples, 8 numbers in 2 heads; its weights are an output."""
    model, value = nn.MultiheadAttention(8, 2), x(5, 3, 8)
    with torchprof_hooks.profile(functions=True) as prof:
        outputs = model(value, value, value, average_attn_weights=average)

    rows = {row.name: row for row in prof.profile.rows(by="function")}
    found = rows["multi_head_attention_forward"].phases["forward"].traffic
    parameters = sum(map(size, model.parameters()))
    assert found == Traffic(1, 4 * 120 + parameters, sum(map(size, outputs)))


def test_largest_of_rows() -> None:
    """They are returned with their places, in a tuple with names."""
    assert traffic(torch.max, const(8, 4), 1).forward == Moved(4 * 32, (4 + 8) * 8)


def test_sum_in_place() -> None:
    assert traffic(T.add_, const(8, 4), x(4)).forward == Moved(4 * 36, 4 * 32)


def test_lstm() -> None:
    """7 steps of 3 examples of 5 numbers; the parameters are read once."""
    parameters = [x(16, 5), x(16, 4), x(16), x(16)]
    state = (const(1, 3, 4), const(1, 3, 4))
    found = traffic(
        torch.lstm, x(7, 3, 5), state, parameters, True, 1, 0.0, True, False, False
    )

    given = 4 * (105 + 24 + 80 + 64 + 32)
    assert found == (Moved(given, 4 * (84 + 24)), None)


def test_views_move_nothing() -> None:
    for name, *args in (
        ("view", 4, 3), ("transpose", 0, 1), ("permute", 1, 0), ("expand", 2, 3, 4),
        ("unsqueeze", 0), ("detach",), ("chunk", 2), ("split", 1), ("__getitem__", 0),
        ("__getitem__", (0, None, 1)),
    ):  # fmt: skip
        assert traffic(getattr(T, str(name)), x(3, 4), *args).forward == Moved(0, 0)


def test_an_embedding_reads_the_rows_that_it_looks_up() -> None:
    found = traffic(F.embedding, whole(2, 3), x(1000, 4))

    assert found.forward == Moved(8 * 6 + 4 * 24, 4 * 24)


def test_dropout_that_is_off_moves_nothing() -> None:
    assert traffic(F.dropout, x(3, 4), 0.1, False).forward == Moved(0, 0)
    assert traffic(F.dropout, x(3, 4), 0.1, True).forward == Moved(48, 48)


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (T.reshape, (x(3, 4), 12), {}),  # copies, or does not
        (T.contiguous, (x(3, 4),), {}),
        (T.to, (x(3, 4), torch.float64), {}),
        (torch.add, (x(3, 4), x(3, 4)), {"out": const(3, 4)}),
        (torch.topk, (x(3, 4), 2), {}),
        (T.__getitem__, (x(3, 4), whole(2)), {}),
    ],
)
def test_unknown(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert traffic(function, *args, **kwargs) == (None, None)


# By what comes out

#: The first of them are products.
PRODUCTS: Final = 11
CALLS: Final[Sequence[Call]] = [
    (F.linear, (x(2, 3, 5), x(4, 5), x(4)), {}),
    (F.linear, (x(5), x(4, 5)), {}),
    (torch.matmul, (x(2, 1, 3, 5), x(6, 5, 4)), {}),
    (T.__matmul__, (x(3, 5), const(5, 4)), {}),
    (torch.bmm, (const(6, 3, 5), x(6, 5, 4)), {}),
    (torch.addmm, (x(4), x(3, 5), x(5, 4)), {"beta": 0.5}),
    (torch.conv1d, (x(3, 9), x(4, 3, 2)), {}),
    (torch.conv1d, (x(2, 3, 9), x(4, 3, 2), x(4), 2, "valid", 3), {}),
    (torch.conv2d, (x(2, 6, 9, 8), x(4, 3, 3, 5), None, 1, "same", 1, 2), {}),
    (torch.conv_transpose1d, (x(2, 3, 9), x(3, 4, 2), x(4), 3, 1, 2), {}),
    (F.scaled_dot_product_attention, (x(2, 1, 4, 8), x(2, 1, 6, 8), x(2, 1, 6, 8)), {}),
    (F.relu, (x(3, 4),), {}),
    (F.gelu, (x(3, 4),), {"approximate": "tanh"}),
    (F.layer_norm, (x(3, 4), (4,), x(4), x(4)), {}),
    (F.group_norm, (x(3, 4, 5), 2), {"weight": x(4)}),
    (T.softmax, (x(3, 4), -1), {}),
    (F.log_softmax, (x(3, 4),), {"dim": 1}),
    (F.cross_entropy, (x(3, 4), whole(3)), {}),
    (F.mse_loss, (x(3, 4), x(3, 4)), {}),
    (F.embedding, (whole(2, 3), x(10, 4)), {}),
    (T.mul, (x(3, 1, 4), x(5, 1)), {}),
    (T.mul, (x(3, 4), 2), {}),
    (T.__rsub__, (x(3, 4), 1), {}),
    (T.add, (x(3, 4), torch.ones(4, dtype=torch.float64)), {}),
    (T.add, (x(3, 4), torch.ones((), dtype=torch.float64)), {}),
    (T.add, (whole(3, 4), 1), {}),
    (torch.where, (torch.ones(3, 1, dtype=torch.bool), x(3, 4), x(4)), {}),
    (T.masked_fill, (x(3, 4), torch.ones(4, dtype=torch.bool), -1.0), {}),
    (T.lt, (x(3, 4), 2), {}),
    (torch.exp, (x(3, 4),), {}),
    (torch.cat, ([x(3, 4), x(2, 4)],), {"dim": 0}),
    (torch.stack, ([x(3, 4), x(3, 4)],), {}),
    (torch.div, (whole(3), whole(3)), {}),
    (torch.matmul, (whole(3, 3), whole(3, 3)), {}),
    (F.softmax, (x(3, 4), -1, 3, torch.float64), {}),
    (F.mse_loss, (x(3, 4), x(3, 4)), {"reduction": "none"}),
    (T.mean, (x(3, 4, 5), 1), {}),
    (T.mean, (x(3, 4, 5), (0, -1), True), {}),
    (torch.sum, (x(3, 4),), {}),
    (T.clone, (x(3, 4),), {}),
]  # fmt: skip


def names(call: Call) -> str:
    return str(call[0].__name__)


def size(tensor: T) -> int:
    return tensor.numel() * tensor.element_size()


@pytest.mark.parametrize("call", CALLS, ids=names)
@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
def test_what_comes_out(call: Call, autocast: bool) -> None:
    function, args, kwargs = call
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        forward = traffic(function, *args, **kwargs).forward
        outputs = _pytree.tree_leaves(function(*args, **kwargs))

    told = None if forward is None else forward.written
    is_unknown = autocast and told is None
    assert is_unknown or told == sum(map(size, outputs))


@pytest.mark.parametrize("call", CALLS[:PRODUCTS], ids=names)
def test_gradients_that_come_out(call: Call) -> None:
    function, args, kwargs = call
    backward = traffic(function, *args, **kwargs).backward
    given = [each for each in _pytree.tree_leaves((args, kwargs))
             if isinstance(each, T) and each.requires_grad]  # fmt: skip

    output = function(*args, **kwargs)
    gradients = torch.autograd.grad(output, given, torch.ones_like(output))

    assert backward is not None
    assert backward.written == sum(map(size, gradients))


# In a profile


def test_in_a_profile() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU())
    with torchprof_hooks.profile(functions=True) as prof:
        for _ in range(3):
            model(const(6, 5)).sum().backward()

    profile = prof.profile
    rows = {row.class_name: row.phases for row in profile.rows(by="function")}

    linear, relu = rows["linear"], rows["relu"]
    assert linear["forward"].traffic == Traffic(3, 3 * 216, 3 * 96)
    assert linear["backward"].traffic == Traffic(3, 3 * 216, 3 * 96)
    assert relu["forward"].traffic == Traffic(3, 3 * 96, 3 * 96)
    assert relu["backward"].traffic == Traffic()
    (row, *_) = [row for row in profile.rows() if row.name == "Sequential.0"]
    assert row.phases["forward"].traffic == Traffic()  # modules have none


def test_of_calls_of_which_the_first_one_failed() -> None:
    """What they return was not seen."""
    model = nn.Linear(5, 4)
    with torchprof_hooks.profile(functions=True) as prof:
        for wrong in (True, False, False):
            model.half() if wrong else model.float()
            with suppress(RuntimeError):
                model(const(6, 5))

    rows = {row.class_name: row for row in prof.profile.rows(by="function")}
    linear = rows["linear"]
    assert linear.phases["forward"].traffic == Traffic()
    assert linear.phases["forward"].flops == 3 * 2 * 6 * 5 * 4
