"""Memory as the native core counts it: that of tensors on the CPU, to the byte, and of
a device, as its allocator says."""

from __future__ import annotations

from typing import Any, Final

import torch

from torchprof_hooks.capture.attach.attachments import Attachment
from torchprof_hooks.capture.core import CORE
from torchprof_hooks.measure.allocator_counter import AllocatorCounter
from torchprof_hooks.measure.memory_counter import MemoryCounter, Reading
from torchprof_hooks.measure.memory_counter import memory_counter as device_counter


class NativeCounter:
    """A `MemoryCounter` in the native core, which also adds up what calls do."""

    is_net = False

    def __init__(self, *device: Any) -> None:
        assert CORE.module is not None
        #: What reads and adds up, for a cursor (see `Cursor.memory`).
        self.meter: Any = CORE.module.MemoryMeter(*device)

    @property
    def name(self) -> str:
        """See `MemoryCounter`."""
        raise NotImplementedError

    def start(self) -> None:
        """Measuring begins, for the first time or again."""
        self.meter.start()

    def read(self) -> Reading:
        """See `MemoryCounter.read`."""
        reading: Reading = self.meter.read()
        return reading


class TensorCounter(NativeCounter):
    """Counts what one thread, the first to read it, allocates for tensors on the CPU.

    Tensors are counted while `counted_tensors` has users: the core then stands in front
    of torch's allocator. Others that hear of allocations, such as ``torch.profiler``,
    are told as before. Used bytes are taken from the system, so they are the acquired
    ones as well; the current level is what the thread has not given back, and the peak
    is that since the last reading.
    """

    name = "cpu"


class DeviceCounter(NativeCounter):
    """Reads what an `AllocatorCounter` does, without torch's dictionary of all that the
    allocator counts: that took 10 us at each begin and end of a call. The peak is that
    since the last reading.
    """

    def __init__(self, counter: AllocatorCounter) -> None:
        index = -1 if counter.index is None else counter.index
        super().__init__(counter.kind, index)
        self._counter = counter

    @property
    def name(self) -> str:
        """See `MemoryCounter`."""
        kind, index = self._counter.kind, self.meter.index
        return kind if index < 0 else f"{kind}:{index}"

    def start(self) -> None:
        """See `NativeCounter`."""
        self._counter.check_index()
        super().start()


def memory_counter(
    device: str | torch.device | None = None, option: str = "device"
) -> MemoryCounter:
    """The counter of a device: the native core's, where that runs and can ask the
    device's allocator, else the one that `measure` has."""
    if CORE.module is None:
        return device_counter(device, option)
    found = device_counter(device, option, TensorCounter)
    if not isinstance(found, AllocatorCounter):
        return found
    is_asked = CORE.module.counts_device_bytes(found.kind)
    return DeviceCounter(found) if is_asked else found


class _CountedTensors(Attachment):
    """The native core, in front of torch's allocator for the CPU. Its users are those
    who want to know what it counts."""

    def put_on(self) -> None:
        if CORE.module is not None:
            CORE.module.count_tensors(True)

    def take_off(self) -> bool:
        """Go away. Tensors that were counted may live on, and tell when they die."""
        return CORE.module is None or not CORE.module.count_tensors(False)


#: The one there is.
counted_tensors: Final = _CountedTensors()
