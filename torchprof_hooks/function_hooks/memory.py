"""Chainer's CupyMemoryProfileHook."""

from __future__ import annotations

import torch

from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.make_tracker import make_function_tracker
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.function_hook import FunctionHook
from torchprof_hooks.hooks.memory import MemoryHook


class MemoryProfileHook(MemoryHook, FunctionHook):
    """Measures the memory that every function takes, forward and backward, as
    ``chainer.function_hooks.CupyMemoryProfileHook`` does.

    Args:
        device: what to measure: "cpu", "cuda" or "cuda:1"; by default CUDA's current
            device if the program has initialised CUDA by the time it enters the hook,
            else the CPU.
        history_size: how many calls `call_history` keeps. The sums are exact anyhow.

    Raises:
        MemoryUnavailableError: the memory cannot be measured here (a RuntimeError that
            says why: the CPU's needs the native core, say).
        ValueError: no such device, or a negative `history_size`.

    Example:
        >>> hook = MemoryProfileHook()
        >>> with hook:
        ...     train_step(batch)
        >>> hook.print_report()
         FunctionName  UsedBytes  AcquiredBytes  PeakBytes  Occurrence
               linear    36.25MB        20.00MB     4.00MB          16
                 relu     8.00MB         0.00MB     1.00MB           8
        Memory of cuda:0 (caching allocator): what was handed out; freed bytes count,
        too.

    FunctionName is the name as the user wrote it. UsedBytes: what the allocator handed
    out during its calls, forward and backward. AcquiredBytes: what the allocator took
    from the device meanwhile. PeakBytes: the highest rise of the memory in use within
    one call. Occurrence: the number of calls. On the CPU, the native core counts the
    tensors that the calling thread makes, to the byte. A function called by a custom
    Function's forward counts both for that Function and for itself
    (``summary(own=True)`` counts it for itself only); `total_used_bytes` and
    `total_acquired_bytes` count every byte once.

    This hook never waits for the device, and never initialises CUDA.
    """

    name = "MemoryProfileHook"
    _name_header = "FunctionName"

    def __init__(
        self,
        device: str | torch.device | None = None,
        *,
        history_size: int = 100_000,
    ) -> None:
        super().__init__(device, history_size)

    def _make_tracker(self, everywhere: bool) -> Tracker:
        meters = [self._new_meter()]
        tracker = make_function_tracker(self, everywhere, meters, follows_modules=False)
        self._follow(tracker)
        return tracker

    def _is_call(self, site: Site) -> bool:
        return site.function is not None and not site.is_hidden

    def _name(self, tracker: Tracker, site: Site) -> str:
        return site.function or ""
