"""The counters that a device's allocator keeps itself."""

from __future__ import annotations

from typing import Any

import torch
from torch.version import __version__ as TORCH_VERSION

from torchprof_hooks.profiles.errors import MemoryUnavailableError

#: used, acquired, current, peak: all in bytes.
Reading = tuple[int, int, int, int]


class AllocatorCounter:
    """The counters of a device's allocator: CUDA's, or that of an `Accelerator`.

    All readings are zero until the program itself has initialised the device. Without
    an index, the device is the one that is current at the first reading after that.

    Raises:
        MemoryUnavailableError: the allocator does not count.
        ValueError: there is no such device. (As long as devices are not initialised,
            that is not known, and a later reading fails instead.)
    """

    def __init__(
        self, index: int | None = None, device: Any = torch.cuda, kind: str = "cuda"
    ) -> None:
        _check_allocator(device.get_allocator_backend(), kind)
        self.kind = kind
        self.index = index
        self._device = device
        self.check_index()

    def check_index(self) -> None:
        """Check that the device exists, if devices are initialised: to count them
        earlier could start the driver.

        Raises:
            ValueError: there is no device of this index.
        """
        index, device = self.index, self._device
        is_known = index is not None and device.is_initialized()
        if is_known and index >= device.device_count():
            raise ValueError(f"there is no {self.kind}:{index}: use a smaller number")

    def read(self) -> Reading:
        """Used bytes (handed out so far, to all threads), acquired (taken from the
        device), current (in use now) and peak (the most that was in use). Does not wait
        for the device."""
        if not self._device.is_initialized():
            return 0, 0, 0, 0
        if self.index is None:
            self.index = self._device.current_device()
        stats = self._device.memory_stats_as_nested_dict(self.index)
        if not stats:  # the allocator does not count: that shows only once it is in use
            return 0, 0, 0, 0
        used = stats["allocated_bytes"]["all"]
        acquired = stats["reserved_bytes"]["all"]["allocated"]
        return used["allocated"], acquired, used["current"], used["peak"]


def _check_allocator(backend: str, kind: str) -> None:
    if backend == "native":
        return
    # cudaMallocAsync reports 0 bytes as allocated so far; a pluggable allocator raises
    # when it is asked.
    if kind == "cuda":
        reason = f"the allocator {backend!r} does not count the bytes that it hands out"
        remedy = "Use the native one (PYTORCH_CUDA_ALLOC_CONF=backend:native)"
    else:
        reason = f"torch {TORCH_VERSION} is not told what its allocator hands out"
        remedy = "Measure the CPU, or use a torch and a device package that count"
    raise MemoryUnavailableError(
        f"the memory of {kind} devices cannot be measured: {reason}. {remedy}"
    )
