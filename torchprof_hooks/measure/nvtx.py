"""Named ranges for NVIDIA's profilers."""

from __future__ import annotations

import threading
from typing import Any

import torch


class NvtxRanges(threading.local):
    """Ranges of NVTX, by ``torch.cuda.nvtx``; each thread has its own.

    A call that raises never ends its range. So a range that ends also ends those that
    were left open inside of it.

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
        """End whatever is open in this thread."""
        while self._open:
            self._open.pop()
            self._nvtx.range_pop()
