"""What the NVTX hooks of modules and of functions have in common."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any

import torch

from torchprof_hooks.instruments.functions.call import FunctionCall
from torchprof_hooks.kernel.callbacks import LinkCall


class NvtxRanges(threading.local):
    """NVTX ranges, made by ``torch.cuda.nvtx``; each thread has its own.

    A call that raises does not end its range. So the end of a range also ends the
    open ranges inside of it.

    Raises:
        RuntimeError: this torch has no CUDA, or no NVTX.
    """

    def __init__(self, nvtx: Any = torch.cuda.nvtx) -> None:
        self._nvtx = nvtx
        self._open: list[object] = []
        try:
            self.begin("torchprof_hooks", None)
        except RuntimeError as error:
            raise RuntimeError(
                f"NVTX ranges need a torch that is built with CUDA and NVTX: {error}"
            ) from error
        self.end_all()

    def begin(self, name: str, call: object) -> None:
        """Begin a range for `call` inside of those that are open."""
        self._nvtx.range_push(name)
        self._open.append(call)

    def end(self, call: object) -> None:
        """End the range of `call`, if there is one, and those inside."""
        if any(other is call for other in self._open):
            while self._open.pop() is not call:
                self._nvtx.range_pop()
            self._nvtx.range_pop()

    def end_all(self) -> None:
        """End all open ranges of this thread."""
        while self._open:
            self._open.pop()
            self._nvtx.range_pop()


class NvtxCallbacks:
    """The callbacks of a hook that marks every call as a range."""

    name = "NvtxHook"

    def __init__(self) -> None:
        self._ranges = NvtxRanges()  # made now, so that a missing NVTX raises here

    @cached_property
    def _ranges(self) -> NvtxRanges:
        return NvtxRanges()

    def deleted(self, target: Any) -> None:
        """End the ranges of calls that have raised."""
        self._ranges.end_all()

    def forward_preprocess(self, call: Any, *tensors: Any) -> None:
        self._ranges.begin(f"{_range_name(call)}.forward", call)

    def forward_postprocess(self, call: Any, *tensors: Any) -> None:
        self._ranges.end(call)

    def backward_preprocess(self, call: Any, *tensors: Any) -> None:
        self._ranges.begin(f"{_range_name(call)}.backward", _backward_key(call))

    def backward_postprocess(self, call: Any, *tensors: Any) -> None:
        self._ranges.end(_backward_key(call))


def _range_name(call: LinkCall | FunctionCall) -> str:
    return call.path if isinstance(call, LinkCall) else call.label


def _backward_key(call: LinkCall | FunctionCall) -> object:
    """An object that is the same in both callbacks of a backward. For a module, that is
    its path: only one backward of a path is open at a time."""
    return call.path if isinstance(call, LinkCall) else call
