"""What is a function, and what it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.functions import FunctionRecorder, pres, x


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


#: What a line of a program calls.
NAMES = {
    "a + b": "add",
    "1 + a": "add",
    "a / b": "div",
    "a // b": "floordiv",
    "a % b": "remainder",
    "a ** 2": "pow",
    "2 ** a": "pow",
    "a @ square": "matmul",
    "-a": "neg",
    "abs(a)": "abs",
    "~i": "invert",
    "i & j": "and",
    "i << 1": "lshift",
    "a == b": "eq",
    "a[0]": "getitem",
    "a[0] = 1": "setitem",
    "1 in a": "contains",
    "a += b": "add_",
    "a **= 2": "pow_",
    "i &= j": "and_",
    "a.sum()": "sum",
    "a.exp_()": "exp_",
    "a.T": "T",
    "float(one)": "__float__",
    "bool(one)": "__bool__",
    "a.to(torch.float64)": "to",
    "one.item()": "item",
    "torch.exp(a)": "exp",
    "torch.ones(2)": "ones",
    "torch.einsum('ij,kj->ik', a, b)": "einsum",
    "torch.linalg.norm(a)": "linalg_norm",
    "torch.fft.fft(a)": "fft_fft",
    "torch.special.expit(a)": "special_expit",
    "F.relu(a)": "relu",
    "F.cross_entropy(a, targets)": "cross_entropy",
    "torch.ops.aten.mm(a, square)": "mm",
    "torch.ops.aten.mm.default(a, square)": "mm",
}


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
