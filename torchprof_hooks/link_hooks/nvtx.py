"""Chainer's CUDAProfileHook, for modules."""

from __future__ import annotations

from torchprof_hooks.hooks.nvtx import NvtxCallbacks
from torchprof_hooks.link_hook import LinkHook


class NvtxHook(NvtxCallbacks, LinkHook):
    """Marks every module call as an NVTX range, for NVIDIA's profilers.

    Ranges are called by the module's qualified name, ``Net.fc.forward`` and
    ``Net.fc.backward``; those of inner modules lie inside.

    Raises:
        RuntimeError: there is no CUDA, or no NVTX.

    Example:
        >>> with NvtxHook():  # in a program started by `nsys profile`
        ...     train_step(batch)
    """
