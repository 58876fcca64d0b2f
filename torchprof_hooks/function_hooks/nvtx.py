"""Chainer's CUDAProfileHook for functions."""

from __future__ import annotations

from torchprof_hooks.function_hook import FunctionHook
from torchprof_hooks.hooks.nvtx import NvtxCallbacks


class NvtxHook(NvtxCallbacks, FunctionHook):
    """Marks every function as an NVTX range, for NVIDIA's profilers, as
    ``chainer.function_hooks.CUDAProfileHook`` does.

    Ranges are named ``linear.forward`` and ``linear.backward``.

    Raises:
        RuntimeError: this torch is built without CUDA, or without NVTX.

    Example:
        >>> with NvtxHook():  # in a program started by `nsys profile`
        ...     train_step(batch)
    """
