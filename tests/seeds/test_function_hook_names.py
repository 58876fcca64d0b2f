"""What is a function, and what it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.functions import FunctionRecorder, pres, x
from torchprof_hooks import add_hook, delete_hook


def plain(*size: int) -> torch.Tensor:
    return x(*size).detach()


def called(work: Callable[[], object]) -> list[str]:
    """Names of the functions that `work` calls."""
    with FunctionRecorder() as hook:
        work()
    return pres(hook.events)


def running(code: str, **variables: Any) -> Callable[[], None]:
    """Runs a line of a program."""
    known = {"torch": torch, "F": F, "a": plain(), "b": plain(), "one": plain(1)}
    others = {"square": plain(3, 3), "targets": torch.tensor([0, 1])}
    bits = {"i": torch.full((2, 2), 3), "j": torch.full((2, 2), 3)}
    program = compile(code, "a program", "exec")
    variables = {**known, **others, **bits, **variables}
    return lambda: exec(program, variables)


#: What a line of a program calls, and the method by which a hook may be put on that:
#: torch calls some operators by other names than Python.
OPERATORS = {
    "a + b": ("add", "__add__"),
    "1 + a": ("add", "__radd__"),
    "a - b": ("sub", "__sub__"),
    "1 - a": ("sub", "__rsub__"),
    "a * b": ("mul", "__mul__"),
    "2 * a": ("mul", "__rmul__"),
    "a / b": ("div", "__truediv__"),
    "1 / a": ("div", "__rtruediv__"),
    "a // b": ("floordiv", "__floordiv__"),
    "a % b": ("remainder", "__mod__"),
    "a ** 2": ("pow", "__pow__"),
    "2 ** a": ("pow", "__rpow__"),
    "a @ square": ("matmul", "__matmul__"),
    "-a": ("neg", "__neg__"),
    "abs(a)": ("abs", "__abs__"),
    "~i": ("invert", "__invert__"),
    "i & j": ("and", "__and__"),
    "i | j": ("or", "__or__"),
    "i ^ j": ("xor", "__xor__"),
    "i << 1": ("lshift", "__lshift__"),
    "a == b": ("eq", "__eq__"),
    "a < b": ("lt", "__lt__"),
    "a[0]": ("getitem", "__getitem__"),
    "a[0] = 1": ("setitem", "__setitem__"),
    "1 in a": ("contains", "__contains__"),
    "a += b": ("add_", "__iadd__"),
    "a -= b": ("sub_", "__isub__"),
    "a *= b": ("mul_", "__imul__"),
    "a /= b": ("div_", "__itruediv__"),
    "a **= 2": ("pow_", "__ipow__"),
    "i &= j": ("and_", "__iand__"),
}
CALLS = {
    "a.sum()": "sum",
    "a.exp()": "exp",
    "a.exp_()": "exp_",
    "a.view(3, 2)": "view",
    "a.T": "T",
    "a.real": "real",
    "a.float()": "float",
    "float(one)": "__float__",
    "int(one)": "__int__",
    "a.bool()": "bool",
    "bool(one)": "__bool__",
    "a.to(torch.float64)": "to",
    "one.item()": "item",
    "a.detach()": "detach",
    "a.contiguous()": "contiguous",
    "torch.exp(a)": "exp",
    "torch.cat([a, b])": "cat",
    "torch.ones(2)": "ones",
    "torch.empty(2)": "empty",
    "torch.einsum('ij,kj->ik', a, b)": "einsum",
    "torch.linalg.norm(a)": "linalg_norm",
    "torch.fft.fft(a)": "fft_fft",
    "torch.special.expit(a)": "special_expit",
    "F.relu(a)": "relu",
    "F.linear(a, square)": "linear",
    "F.softmax(a, -1)": "softmax",
    "F.cross_entropy(a, targets)": "cross_entropy",
    "torch.ops.aten.mm(a, square)": "mm",
    "torch.ops.aten.mm.default(a, square)": "mm",
}


NAMES = {code: name for code, (name, _) in OPERATORS.items()} | CALLS


@pytest.mark.parametrize(("code", "name"), NAMES.items())
def test_functions_are_called_what_the_user_or_torch_calls_them(
    code: str, name: str
) -> None:
    assert called(running(code)) == [name]


READS = [
    *("a.shape", "a.dtype", "a.device", "a.grad", "a.grad_fn", "a.requires_grad"),
    *("a.is_leaf", "a.ndim", "a.data", "a.layout", "a.is_sparse", "a.size()"),
    *("a.dim()", "a.numel()", "a.stride()", "a.data_ptr()", "a.is_contiguous()"),
    *("a.is_floating_point()", "a.element_size()", "a.untyped_storage()"),
    *("a.requires_grad_()", "a.register_hook(lambda grad: None)", "len(a)", "hash(a)"),
    *("repr(a)", "a.grad = None", "a.requires_grad = True", "torch.is_tensor(a)"),
    *("torch.numel(a)", "torch.result_type(a, 1)", "torch.set_grad_enabled(True)"),
    "torch.device('cpu')",
]


@pytest.mark.parametrize("code", READS)
def test_reads_are_not_functions(code: str) -> None:
    assert called(running(code, a=x())) == []


def test_functions_inside_functions_are_not_seen() -> None:
    # multi_head_attention_forward calls linear, softmax, ... in Python.
    attention = nn.MultiheadAttention(4, 2)
    tokens = plain(3, 1, 4)

    assert called(lambda: attention(tokens, tokens, tokens)).count("linear") == 0


@pytest.mark.parametrize(
    ("code", "name", "method"),
    [(code, *of_code) for code, of_code in OPERATORS.items()],
)
def test_a_hook_on_the_method_of_an_operator_sees_it(
    code: str, name: str, method: str
) -> None:
    work, hook = running(code), FunctionRecorder()
    target = getattr(torch.Tensor, method)
    add_hook(target, hook)
    work()
    delete_hook(target, hook.name)

    assert pres(hook.events) == [name]
