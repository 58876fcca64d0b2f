"""Memory of tensors on the CPU, to the byte, as the native core counts it."""

from __future__ import annotations

from typing import Any, Final

import torch

from torchprof_hooks.capture.attach.attachments import Attachment
from torchprof_hooks.capture.core import CORE
from torchprof_hooks.measure.memory_counter import (
    CpuMemoryCounter,
    MemoryCounter,
    Reading,
)
from torchprof_hooks.measure.memory_counter import memory_counter as device_counter


class TensorCounter:
    """What the thread that reads it first takes for tensors on the CPU, and gives back.

    It is counted while `counted_tensors` has users: the core then stands in front of
    torch's allocator. Whoever else hears of allocations, such as ``torch.profiler``, is
    told as before. Used bytes are taken from the system, so they are the acquired ones
    as well; the current level is what the thread has not given back, and the peak is
    that since the last reading.
    """

    name = "cpu"
    is_net = False

    def __init__(self) -> None:
        assert CORE.module is not None
        #: What reads and adds up, for a cursor (see `Cursor.tensors`).
        self.meter: Any = CORE.module.TensorMeter()

    def read(self) -> Reading:
        """See `MemoryCounter.read`."""
        reading: Reading = self.meter.read()
        return reading


def memory_counter(
    device: str | torch.device | None = None, option: str = "device"
) -> MemoryCounter:
    """The counter of a device, as that of `measure`; but of the CPU, the native core's,
    where there is one."""
    of_cpu = CpuMemoryCounter if CORE.module is None else TensorCounter
    return device_counter(device, option, of_cpu)


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
