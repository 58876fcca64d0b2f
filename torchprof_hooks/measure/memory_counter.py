"""Counters of memory: the bytes that an allocator handed out, read at any moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from torchprof_hooks.measure.accelerator import Accelerator, current_accelerator
from torchprof_hooks.measure.allocator_counter import AllocatorCounter
from torchprof_hooks.profiles.errors import MemoryUnavailableError

#: used, acquired, current, peak: all in bytes.
Reading = tuple[int, int, int, int]


class MemoryCounter(Protocol):
    """Reads what the allocator of one device has handed out so far.

    The difference of two readings is what happened between them, on all threads.
    """

    @property
    def name(self) -> str:
        """The device: "cpu", "cuda:0"."""

    def read(self) -> Reading:
        """Used bytes (handed out so far), acquired (taken from the device or the
        system), current (in use now) and peak (the most that was in use)."""


def memory_counter(
    device: str | torch.device | None = None,
    option: str = "device",
    *,
    of_cpu: Callable[[], MemoryCounter],
) -> MemoryCounter:
    """The counter of a device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``, or another kind
    of accelerator.

    option: what the user calls the device, for errors.
    of_cpu: makes the counter of the CPU.

    Without a device, the accelerator's current one is measured if the program has
    initialised that, else the CPU. This does not initialise it.

    Raises:
        TypeError, ValueError: not a device, or not one whose memory can be measured.
        MemoryUnavailableError: it cannot be measured in this process.
    """
    if device is None:
        in_use = _device_in_use()
        return of_cpu() if in_use is None else _counter_of(in_use)
    place = _parse(device, option)
    if place.type == "cpu":
        return of_cpu()
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
    if place.type == "cuda":
        return AllocatorCounter(place.index)
    return AllocatorCounter(place.index, Accelerator(place.type), place.type)


def _device_in_use() -> torch.device | None:
    """The accelerator's current device, if the program has initialised it."""
    kind = current_accelerator()
    if kind is None:
        return None
    device = torch.cuda if kind == "cuda" else Accelerator(kind)
    if not device.is_initialized():
        return None
    return torch.device(kind, device.current_device())


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
