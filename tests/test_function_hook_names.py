"""What is a function, and what it is called."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.functions import CUBE, Cube, FunctionRecorder, pres, x
from torchprof_hooks import add_hook, delete_hook

alias = Cube.apply  # kept under a name of its own before any hook is active


def plain(*size: int) -> torch.Tensor:
    return x(*size).detach()


def fill(tensor: torch.Tensor) -> None:
    tensor[0] = 1


def bits() -> torch.Tensor:
    return torch.full((2, 2), 3)


def called(work: Callable[[], object]) -> list[str]:
    """Names of the functions that `work` calls."""
    with FunctionRecorder() as hook:
        work()
    return pres(hook.events)


A, B, SQUARE, BITS = plain(), plain(), plain(3, 3), bits()
TARGETS = torch.tensor([0, 1])

OPERATORS: dict[str, tuple[Callable[[], object], str]] = {
    "x + y": (lambda: A + B, "add"),
    "1 + x": (lambda: 1 + A, "add"),
    "x - y": (lambda: A - B, "sub"),
    "1 - x": (lambda: 1 - A, "sub"),
    "x * y": (lambda: A * B, "mul"),
    "2 * x": (lambda: 2 * A, "mul"),
    "x / y": (lambda: A / B, "div"),
    "1 / x": (lambda: 1 / A, "div"),
    "x // y": (lambda: A // B, "floordiv"),
    "x % y": (lambda: A % B, "remainder"),
    "x ** 2": (lambda: A**2, "pow"),
    "2 ** x": (lambda: 2**A, "pow"),
    "x @ y": (lambda: A @ SQUARE, "matmul"),
    "-x": (lambda: -A, "neg"),
    "abs(x)": (lambda: abs(A), "abs"),
    "~x": (lambda: ~BITS, "invert"),
    "x & y": (lambda: BITS & BITS, "and"),
    "x | y": (lambda: BITS | BITS, "or"),
    "x ^ y": (lambda: BITS ^ BITS, "xor"),
    "x << 1": (lambda: BITS << 1, "lshift"),
    "x == y": (lambda: A == B, "eq"),
    "x < y": (lambda: A < B, "lt"),
    "x[0]": (lambda: A[0], "getitem"),
    "x[0] = 1": (lambda: fill(A.clone()), "setitem"),
    "1 in x": (lambda: 1 in A, "contains"),
    "x += y": (lambda: operator.iadd(A.clone(), B), "add_"),
    "x -= y": (lambda: operator.isub(A.clone(), B), "sub_"),
    "x *= y": (lambda: operator.imul(A.clone(), B), "mul_"),
    "x /= y": (lambda: operator.itruediv(A.clone(), B), "div_"),
    "x **= 2": (lambda: operator.ipow(A.clone(), 2), "pow_"),
    "x &= y": (lambda: operator.iand(BITS.clone(), BITS), "and_"),
}


@pytest.mark.parametrize(("work", "name"), OPERATORS.values(), ids=OPERATORS)
def test_operators_are_called_what_torch_calls_them(
    work: Callable[[], object], name: str
) -> None:
    in_place = ["clone"] if name.endswith("_") or name == "setitem" else []

    assert called(work) == [*in_place, name]


FUNCTIONS: dict[str, tuple[Callable[[], object], str]] = {
    "x.sum()": (A.sum, "sum"),
    "x.exp()": (A.exp, "exp"),
    "x.exp_()": (A.exp_, "exp_"),
    "x.view()": (lambda: A.view(3, 2), "view"),
    "x.T": (lambda: A.T, "T"),
    "x.real": (lambda: A.real, "real"),
    "x.float()": (A.float, "float"),
    "float(x)": (plain(1).__float__, "__float__"),
    "int(x)": (plain(1).__int__, "__int__"),
    "x.bool()": (A.bool, "bool"),
    "bool(x)": (plain(1).__bool__, "__bool__"),
    "x.to()": (lambda: A.to(torch.float64), "to"),
    "x.item()": (plain(1).item, "item"),
    "x.detach()": (A.detach, "detach"),
    "x.contiguous()": (A.contiguous, "contiguous"),
    "torch.exp": (lambda: torch.exp(A), "exp"),
    "torch.cat": (lambda: torch.cat([A, B]), "cat"),
    "torch.ones": (lambda: torch.ones(2), "ones"),
    "torch.empty": (lambda: torch.empty(2), "empty"),
    "torch.einsum": (lambda: torch.einsum("ij,kj->ik", A, B), "einsum"),
    "torch.linalg.norm": (lambda: torch.linalg.norm(A), "linalg_norm"),
    "torch.fft.fft": (lambda: torch.fft.fft(A), "fft_fft"),
    "torch.special.expit": (lambda: torch.special.expit(A), "special_expit"),
    "F.relu": (lambda: F.relu(A), "relu"),
    "F.linear": (lambda: F.linear(A, SQUARE), "linear"),
    "F.softmax": (lambda: F.softmax(A, -1), "softmax"),
    "F.cross_entropy": (lambda: F.cross_entropy(A, TARGETS), "cross_entropy"),
    "torch.ops.aten.mm": (lambda: torch.ops.aten.mm(A, SQUARE), "mm"),
    "torch.ops.aten.mm.default": (
        lambda: torch.ops.aten.mm.default(A, SQUARE),
        "mm",
    ),
}


@pytest.mark.parametrize(("work", "name"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_are_called_as_the_user_wrote_them(
    work: Callable[[], object], name: str
) -> None:
    assert called(work) == [name]


@pytest.mark.parametrize("apply", [Cube.apply, alias], ids=["apply", "alias"])
def test_custom_functions_are_called_by_their_class(apply: Any) -> None:
    with FunctionRecorder() as hook:
        apply(x())

    assert hook.events[1:-1] == CUBE


def test_an_alias_made_while_a_hook_was_active_works_without_it() -> None:
    with FunctionRecorder() as hook:
        inside = Cube.apply
    inside(x()).sum().backward()

    assert hook.events == ["added NoneType", "deleted NoneType"]


def test_functions_inside_functions_are_not_seen() -> None:
    # multi_head_attention_forward calls linear, softmax, ... in Python.
    attention = nn.MultiheadAttention(4, 2)
    tokens = plain(3, 1, 4)

    assert called(lambda: attention(tokens, tokens, tokens)).count("linear") == 0


READS: dict[str, Callable[[torch.Tensor], object]] = {
    "shape": lambda x: x.shape,
    "dtype": lambda x: x.dtype,
    "device": lambda x: x.device,
    "grad": lambda x: x.grad,
    "grad_fn": lambda x: x.grad_fn,
    "requires_grad": lambda x: x.requires_grad,
    "is_leaf": lambda x: x.is_leaf,
    "ndim": lambda x: x.ndim,
    "data": lambda x: x.data,
    "layout": lambda x: x.layout,
    "is_sparse": lambda x: x.is_sparse,
    "size()": lambda x: x.size(),
    "dim()": lambda x: x.dim(),
    "numel()": lambda x: x.numel(),
    "stride()": lambda x: x.stride(),
    "data_ptr()": lambda x: x.data_ptr(),
    "is_contiguous()": lambda x: x.is_contiguous(),
    "is_floating_point()": lambda x: x.is_floating_point(),
    "element_size()": lambda x: x.element_size(),
    "untyped_storage()": lambda x: x.untyped_storage(),
    "requires_grad_()": lambda x: x.requires_grad_(),
    "register_hook()": lambda x: x.register_hook(lambda grad: None),
    "len()": len,
    "hash()": hash,
    "repr()": repr,
    "setting grad": lambda x: setattr(x, "grad", None),
    "setting requires_grad": lambda x: setattr(x, "requires_grad", True),
    "torch.is_tensor": torch.is_tensor,
    "torch.numel": torch.numel,
    "torch.result_type": lambda x: torch.result_type(x, 1),
    "torch.set_grad_enabled": lambda x: torch.set_grad_enabled(True),
    "torch.device": lambda x: torch.device("cpu"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reads_are_not_functions(read: Callable[[torch.Tensor], object]) -> None:
    tensor = x()

    assert called(lambda: read(tensor)) == []


# torch calls some operators by other names than Python: they are hooked all the same.


SPECIAL_METHODS = {
    "__add__": OPERATORS["x + y"],
    "__radd__": OPERATORS["1 + x"],
    "__rsub__": OPERATORS["1 - x"],
    "__mul__": OPERATORS["x * y"],
    "__rmul__": OPERATORS["2 * x"],
    "__truediv__": OPERATORS["x / y"],
    "__rtruediv__": OPERATORS["1 / x"],
    "__floordiv__": OPERATORS["x // y"],
    "__mod__": OPERATORS["x % y"],
    "__pow__": OPERATORS["x ** 2"],
    "__matmul__": OPERATORS["x @ y"],
    "__neg__": OPERATORS["-x"],
    "__and__": OPERATORS["x & y"],
    "__eq__": OPERATORS["x == y"],
    "__lt__": OPERATORS["x < y"],
    "__getitem__": OPERATORS["x[0]"],
    "__setitem__": OPERATORS["x[0] = 1"],
    "__iadd__": OPERATORS["x += y"],
    "__imul__": OPERATORS["x *= y"],
    "__itruediv__": OPERATORS["x /= y"],
    "__ipow__": OPERATORS["x **= 2"],
}


@pytest.mark.parametrize("name", SPECIAL_METHODS)
def test_a_hook_on_an_operator_sees_it(name: str) -> None:
    work, seen_as = SPECIAL_METHODS[name]
    target, hook = getattr(torch.Tensor, name), FunctionRecorder()
    add_hook(target, hook)
    work()
    delete_hook(target, hook.name)

    assert pres(hook.events) == [seen_as]
