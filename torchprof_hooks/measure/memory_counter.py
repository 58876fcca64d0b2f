"""The device whose memory is measured, and the counters that its allocator keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch.version import __version__ as TORCH_VERSION

from torchprof_hooks.measure.accelerator import (
    accelerator_in_use,
    current_accelerator,
    functions_of,
)
from torchprof_hooks.profiles.errors import MemoryUnavailableError

#: used, acquired, current, peak: all in bytes.
MemoryReading = tuple[int, int, int, int]


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

    def read(self) -> MemoryReading:
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
        reason = (
            f"its allocator does not report to torch {TORCH_VERSION} what it hands out"
        )
        remedy = "Measure the CPU, or use a torch and a device package that count"
    raise MemoryUnavailableError(
        f"the memory of {kind} devices cannot be measured: {reason}. {remedy}"
    )


def memory_counter(
    device: str | torch.device | None = None,
    option: str = "device",
) -> AllocatorCounter | None:
    """The counter of a device: ``"cuda"`` or ``"cuda:1"``, or another kind of
    accelerator; None for ``"cpu"``.

    Without a device, this takes the accelerator's current one if the program has
    initialised it, else the CPU. It does not initialise the accelerator.

    option: the user's name for the parameter, for errors.

    Raises:
        TypeError, ValueError: not a device, or not one whose memory can be measured.
        MemoryUnavailableError: the memory cannot be measured in this process.
    """
    if device is None:
        in_use = accelerator_in_use()
        return None if in_use is None else _counter_of(in_use)
    place = _parse(device, option)
    if place.type == "cpu":
        return None
    if place.type != current_accelerator():
        raise MemoryUnavailableError(
            f"the memory of {place} cannot be measured: this torch is built without "
            f"{place.type.upper()}. Measure the CPU, or install a torch with "
            f"{place.type.upper()}"
        )
    try:
        return _counter_of(place)
    except ValueError as error:
        raise ValueError(
            f"{option} must be one of this machine's, not {device!r}: {error}"
        ) from None


def _counter_of(place: torch.device) -> AllocatorCounter:
    return AllocatorCounter(place.index, functions_of(place.type), place.type)


def _parse(device: str | torch.device, option: str) -> torch.device:
    kinds = sorted({"cuda", current_accelerator() or "cuda"})
    names = " or ".join(f"{kind!r} or '{kind}:N'" for kind in kinds)
    problem = f"{option} must be 'cpu', {names}, not {device!r}"
    if not isinstance(device, (str, torch.device)):
        raise TypeError(problem)
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(problem) from error
    if place.type not in ("cpu", *kinds):
        raise ValueError(f"{problem}: of that, memory cannot be measured")
    return place
