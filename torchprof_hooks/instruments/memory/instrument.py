"""Which observers measure memory for a profile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from torchprof_hooks.instruments.memory.meter import MemoryMeter, memory_meter
from torchprof_hooks.instruments.memory.owners import MemoryOwners
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.torch_names.tensors import device_type_of, unnoticed
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.measure.accelerator import current_accelerator
from torchprof_hooks.measure.memory_counter import AllocatorCounter, memory_counter
from torchprof_hooks.profiles.errors import MemoryUnavailableError
from torchprof_hooks.profiles.memory import MemorySummary

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData


class UnmeasuredMemory(Observer):
    """Says why memory is not measured."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def added_to(self, profile: ProfileData) -> ProfileData:
        return replace(profile, memory=MemorySummary(unavailable=self._reason))


class DeviceInUse(Observer):
    """No device was in use when measuring began: has the memory measured of the one on
    which a module has its first parameter, from the first call of such a module on."""

    def __init__(self, meter: MemoryMeter, owners: MemoryOwners) -> None:
        self._meter, self._owners = meter, owners
        self._is_due = True
        self._reason = ""  # why its memory cannot be measured

    def new_call(self, site: Site, module: torch.nn.Module) -> None:
        if not self._is_due:
            return
        try:
            counter = _counter_where(module)
        except MemoryUnavailableError as error:
            self._is_due, self._reason = False, f"not measured: {error}"
            return
        if counter is not None:
            self._is_due = False
            self._go_on_with(counter)

    def _go_on_with(self, counter: AllocatorCounter) -> None:
        parts = self._meter, self._owners
        self._owners.ended()
        for part in parts:
            part.detach()
        self._meter.go_on_with(counter)
        self._owners.begin_anew()
        for part in parts:
            part.attach()
        for part in parts:
            part.began()

    def added_to(self, profile: ProfileData) -> ProfileData:
        reasons = (self._reason,) if self._reason else ()
        return replace(profile, not_measured=(*profile.not_measured, *reasons))


def _counter_where(module: torch.nn.Module) -> AllocatorCounter | None:
    """The counter of the accelerator that has the first parameter of the module; None
    if none has.

    Raises:
        MemoryUnavailableError: its memory cannot be measured.
    """
    with unnoticed():
        _, first = next(torch.nn.Module.named_parameters(module), ("", None))
        if first is None or device_type_of(first) != current_accelerator():
            return None
        return memory_counter(first.device)


def memory_observers(device: str | torch.device | None) -> list[Observer]:
    """What measures the memory of a device (see `memory_meter`), and who has it; or
    what says why that is not possible."""
    try:
        meter = memory_meter(device)
    except MemoryUnavailableError as error:
        return [UnmeasuredMemory(str(error))]
    owners = MemoryOwners(meter)
    if device is None and meter.counts_tensors and current_accelerator():
        return [meter, DeviceInUse(meter, owners), owners]
    return [meter, owners]
