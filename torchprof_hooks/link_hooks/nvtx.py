"""Chainer's CUDAProfileHook, for modules."""

from __future__ import annotations

from typing import Any

from torchprof_hooks.capture.link_call import LinkCall
from torchprof_hooks.link_hook import LinkHook
from torchprof_hooks.measure.nvtx import NvtxRanges


class NvtxHook(LinkHook):
    """Marks every module call as an NVTX range, for NVIDIA's profilers.

    Ranges are called by the module's qualified name, ``Net.fc.forward`` and
    ``Net.fc.backward``; those of inner modules lie inside.

    Raises:
        RuntimeError: there is no CUDA, or no NVTX.

    Example:
        >>> with NvtxHook():  # in a program started by `nsys profile`
        ...     train_step(batch)
    """

    name = "NvtxHook"

    def __init__(self) -> None:
        self._ranges = NvtxRanges()

    def deleted(self, link: Any) -> None:
        """End what exceptions have left open."""
        self._ranges.end_all()

    def forward_preprocess(self, args: LinkCall) -> None:
        """Begin a range."""
        self._ranges.begin(f"{args.path}.forward", args)

    def forward_postprocess(self, args: LinkCall) -> None:
        """End the range."""
        self._ranges.end(args)

    def backward_preprocess(self, args: LinkCall) -> None:
        """Begin a range."""
        # Not the same object for both callbacks; of one path, one backward is open.
        self._ranges.begin(f"{args.path}.backward", args.path)

    def backward_postprocess(self, args: LinkCall) -> None:
        """End the range."""
        self._ranges.end(args.path)
