"""What is read at the begin and the end of each call, besides the host's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from torchprof_hooks.capture.record.memory_log import MemorySums
from torchprof_hooks.capture.tracking.meters.device import DeviceMeter
from torchprof_hooks.capture.tracking.meters.memory import MemoryMeter

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker

#: What measures something that changes while calls run.
Meter = MemoryMeter | DeviceMeter

SomeMeter = TypeVar("SomeMeter", MemoryMeter, DeviceMeter)


def meters_of(tracker: Tracker, kind: type[SomeMeter]) -> list[SomeMeter]:
    """The meters of one kind that a tracker reads; none of a device that the program
    does not use."""
    return [m for m in tracker.meters if isinstance(m, kind) and m.is_awake]


def start_meters(tracker: Tracker) -> None:
    """Measuring begins, for the first time or again."""
    for meter in tracker.meters:
        meter.start()
    if not tracker.meters:
        return
    tracker.look_for_device()


def settle_meters(tracker: Tracker) -> None:
    """Make what was booked readable."""
    for meter in tracker.meters:
        meter.settle()


def memory_sums(tracker: Tracker) -> MemorySums | None:
    """What the tracker's calls did with memory; None if that is not measured."""
    for meter in meters_of(tracker, MemoryMeter):
        meter.settle()
        return MemorySums(*tracker.read_memory())
    return None


def counts_tensors(tracker: Tracker) -> bool:
    """Whether the memory of tensors on the CPU is read."""
    return any(meter.counts_tensors for meter in meters_of(tracker, MemoryMeter))
