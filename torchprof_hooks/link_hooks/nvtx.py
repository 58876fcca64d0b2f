"""Chainer's CUDAProfileHook, for modules."""

from __future__ import annotations

from torchprof_hooks.hooks.nvtx import NvtxCallbacks
from torchprof_hooks.link_hook import LinkHook


class NvtxHook(NvtxCallbacks, LinkHook):
    """Marks every module call as an NVTX range, for NVIDIA's profilers.

    Ranges are named after the module's qualified name, ``Net.fc.forward`` and
    ``Net.fc.backward``; the ranges of inner modules lie inside those of outer ones.

    Raises:
        RuntimeError: this torch is built without CUDA, or without NVTX.

    Example:
        >>> with NvtxHook():  # in a program started by `nsys profile`
        ...     train_step(batch)
    """
