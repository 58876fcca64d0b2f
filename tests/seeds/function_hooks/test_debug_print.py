from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.functions import SumAndDifference, x
from torchprof_hooks import add_hook, delete_hook
from torchprof_hooks.function_hooks import PrintHook

TRAINING = """\
forward linear
  input float32[2, 3] cpu
  input float32[4, 3] cpu requires_grad
forward relu
  input float32[2, 4] cpu requires_grad
forward sum
  input float32[2, 4] cpu requires_grad
backward sum
  input (removed)
  gradient float32[] cpu
backward relu
  input (removed)
  gradient float32[2, 4] cpu
backward linear
  input float32[2, 3] cpu
  input float32[4, 3] cpu requires_grad
  gradient float32[2, 4] cpu
"""


def printed(work: Any, **options: Any) -> str:
    file = io.StringIO()
    with PrintHook(file=file, **options):
        work()
    return file.getvalue()


def test_forward_and_backward_are_printed_to_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    inputs, weight = x(2, 3).detach(), x(4, 3)
    with PrintHook():
        F.linear(inputs, weight).relu().sum().backward()

    assert capsys.readouterr().out == TRAINING


def test_functions_without_inputs() -> None:
    assert printed(lambda: torch.zeros(2)) == "forward zeros\n"


def test_gradients_that_are_none_with_a_hook_on_one_function() -> None:
    file, a, b = io.StringIO(), x(3), x(3)
    add_hook(SumAndDifference, PrintHook(file=file))
    SumAndDifference.apply(a, b)[1].sum().backward()
    delete_hook(SumAndDifference, "PrintHook")

    inputs = "  input float32[3] cpu requires_grad\n" * 2
    assert file.getvalue() == (
        f"forward SumAndDifference\n{inputs}backward SumAndDifference\n{inputs}"
        "  gradient (none)\n"
        "  gradient float32[3] cpu\n"
    )


def test_kinds_of_tensors() -> None:
    # Elements are not looked at: those of a tensor on the meta device cannot be read.
    parameter = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    meta = torch.ones(2, 1, device="meta", dtype=torch.int8)
    nested = torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    )
    shape = list(nested.shape)

    def work() -> None:
        parameter.abs()
        meta.neg()
        nested.neg()

    assert printed(work) == (
        "forward abs\n"
        "  input complex64[2] cpu Parameter requires_grad\n"
        "forward neg\n"
        "  input int8[2, 1] meta\n"
        "forward neg\n"
        f"  input float32{shape} cpu NestedTensor\n"
    )


def test_end_and_flush() -> None:
    class File(io.StringIO):
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1

    for flush, flushes in ((True, 2), (False, 0)):
        file, tensor = File(), x(2)
        with PrintHook(end="|", file=file, flush=flush):
            tensor.exp()
        assert file.getvalue() == "forward exp|  input float32[2] cpu requires_grad|"
        assert file.flushes == flushes


def test_a_graph_that_was_built_outside() -> None:
    loss = x(2).sum()

    assert printed(loss.backward) == (
        "backward SumBackward0\n  gradient float32[] cpu\n"
    )
