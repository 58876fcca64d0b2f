"""Chooses the device whose memory is measured."""

from __future__ import annotations

import torch

from torchprof_hooks.measure.accelerator import Accelerator, current_accelerator
from torchprof_hooks.measure.allocator_counter import AllocatorCounter
from torchprof_hooks.profiles.errors import MemoryUnavailableError


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
        in_use = _device_in_use()
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
