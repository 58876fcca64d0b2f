"""Chainer's PrintHook."""

from __future__ import annotations

import sys
from typing import TextIO

from torchprof_hooks.function_hook import FunctionHook, Tensors
from torchprof_hooks.instruments.functions.call import FunctionCall
from torchprof_hooks.kernel.torch_names.tensors import description_of
from torchprof_hooks.profiles.options import check_file, check_flag


class PrintHook(FunctionHook):
    """Prints every function before it runs, with its inputs, as
    ``chainer.function_hooks.PrintHook`` does.

    Args:
        end: what is printed after each line.
        file: where to print; standard output by default.
        flush: whether to write each line at once, so that none is lost in a crash.

    Example:
        >>> with PrintHook():
        ...     F.linear(x, weight).relu().sum().backward()
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
        ...

    The hook does not print elements of tensors: to read them would wait for the device.
    For tensors of your own class with a ``__torch_dispatch__``, it does not print shape
    and device either: to read these would call that method.
    """

    name = "PrintHook"

    def __init__(
        self, end: str = "\n", file: TextIO | None = None, flush: bool = True
    ) -> None:
        if not isinstance(end, str):
            raise TypeError(f"end must be a text, not {end!r}")
        check_file("file", file)
        check_flag("flush", flush)
        self._end = end
        self._file = file
        self._flush = flush

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Print the function and its inputs."""
        self._print(f"forward {function.label}")
        self._print_all("input", in_data)

    def backward_preprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Print the function, its inputs and its outputs' gradients."""
        self._print(f"backward {function.label}")
        self._print_all("input", in_data)
        self._print_all("gradient", out_grad)

    def _print_all(self, what: str, tensors: Tensors) -> None:
        for tensor in tensors:
            missing = "(removed)" if what == "input" else "(none)"
            text = missing if tensor is None else description_of(tensor)
            self._print(f"  {what} {text}")

    def _print(self, line: str) -> None:
        file = self._file or sys.stdout
        print(line, end=self._end, file=file, flush=self._flush)
