"""Chainer's CupyMemoryProfileHook."""

from __future__ import annotations

import torch

from torchprof_hooks.function_hooks.calls import MeasuredCalls, OpenCall
from torchprof_hooks.hooks.tables import MemoryHookSummary, MemoryReport
from torchprof_hooks.instruments.memory.meter import counted_tensors
from torchprof_hooks.kernel.attachments import Attachment


class MemoryProfileHook(MemoryReport, MeasuredCalls):
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

    def __init__(
        self,
        device: str | torch.device | None = None,
        *,
        history_size: int = 100_000,
    ) -> None:
        MemoryReport.__init__(self, device)
        MeasuredCalls.__init__(self, history_size)

    def _attachments(self) -> tuple[Attachment, ...]:
        return (counted_tensors,) if self._new_meter().counts_tensors else ()

    @property
    def call_history(self) -> list[tuple[str, int, int, int]]:
        """(name, used bytes, acquired bytes, depth) of the newest calls, in the order
        in which they ended. Depth is the number of enclosing calls."""
        return [
            (name, used, acquired, depth)
            for name, (used, acquired, _), depth in self._records.history
        ]

    def total_used_bytes(self) -> int:
        """Used bytes of all calls. Bytes in nested calls count once."""
        return sum(sums.outermost[0] for sums in self._records.sums.values())

    def total_acquired_bytes(self) -> int:
        """Acquired bytes of all calls. Bytes in nested calls count once."""
        return sum(sums.outermost[1] for sums in self._records.sums.values())

    def summary(self, *, own: bool = False) -> dict[str, MemoryHookSummary]:
        """Sums by name, in the order in which the first calls ended.

        Args:
            own: whether to leave out the bytes of inner calls, which have sums of their
                own. Peaks are always those of the whole call.
        """
        return {
            name: {
                "used_bytes": sums.total(0) - own * sums.inner[0],
                "acquired_bytes": sums.total(1) - own * sums.inner[1],
                "peak_bytes": sums.peak,
                "occurrence": sums.calls,
            }
            for name, sums in self._records.sums.items()
        }

    def _read(self, innermost: OpenCall | None) -> tuple[int, ...]:
        here = self._records.here
        if here.meter is None:
            here.meter = self._new_meter()
            here.meter.start()
        used, acquired, level, peak = here.meter.read()
        if innermost is not None:
            innermost.highest = max(innermost.highest, peak)
        return used, acquired, level
