"""Which observers measure memory for a profile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from torchprof_hooks.instruments.memory.meter import memory_meter
from torchprof_hooks.instruments.memory.owners import MemoryOwners
from torchprof_hooks.kernel.observer import Observer
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


def memory_observers(device: str | torch.device | None) -> list[Observer]:
    """What measures the memory of a device (see `memory_meter`), and who has it; or
    what says why that is not possible."""
    try:
        meter = memory_meter(device)
    except MemoryUnavailableError as error:
        return [UnmeasuredMemory(str(error))]
    return [meter, MemoryOwners(meter)]
