"""Chainer's CUDAProfileHook for functions."""

from __future__ import annotations

from typing import Any

from torchprof_hooks.capture.function_call import FunctionCall
from torchprof_hooks.function_hook import FunctionHook, Tensors
from torchprof_hooks.measure.nvtx import NvtxRanges


class NvtxHook(FunctionHook):
    """Marks every function as an NVTX range, for NVIDIA's profilers, as
    ``chainer.function_hooks.CUDAProfileHook`` does.

    Ranges are called ``linear.forward`` and ``linear.backward``.

    Raises:
        RuntimeError: there is no CUDA, or no NVTX.

    Example:
        >>> with NvtxHook():  # in a program started by `nsys profile`
        ...     train_step(batch)
    """

    name = "NvtxHook"

    def __init__(self) -> None:
        self._ranges = NvtxRanges()

    def deleted(self, function: Any) -> None:
        """End what exceptions have left open."""
        self._ranges.end_all()

    def forward_preprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """Begin a range."""
        self._ranges.begin(f"{function.label}.forward", function)

    def forward_postprocess(self, function: FunctionCall, in_data: Tensors) -> None:
        """End the range."""
        self._ranges.end(function)

    def backward_preprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """Begin a range."""
        self._ranges.begin(f"{function.label}.backward", function)

    def backward_postprocess(
        self, function: FunctionCall, in_data: Tensors, out_grad: Tensors
    ) -> None:
        """End the range."""
        self._ranges.end(function)
