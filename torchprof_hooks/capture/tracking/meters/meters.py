"""What is read at the begin and the end of each call, besides the host's clock: that of
a device (`device.py`), and memory: tensors on the CPU, counted to the byte; or a
device's memory, as its allocator counts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch

from torchprof_hooks.capture.attach.attachments import Attachment
from torchprof_hooks.capture.core import CORE, NATIVE, Cursor
from torchprof_hooks.capture.core.span_log import MemorySums
from torchprof_hooks.capture.torch_names.tensors import device_type_of, unnoticed
from torchprof_hooks.capture.tracking.meters.device import DeviceMeter
from torchprof_hooks.measure.accelerator import current_accelerator
from torchprof_hooks.measure.memory_counter import (
    AllocatorCounter,
    Reading,
    memory_counter,
)
from torchprof_hooks.profiles.errors import MemoryUnavailableError

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker


class MemoryMeter:
    """Has the core add up what calls do with memory: it reads memory at each begin and
    end of a call, as it reads the clock.

    On the CPU, it counts what one thread, the first to start or read it, allocates for
    tensors while `counted_tensors` has users: the core then stands in front of torch's
    allocator. Others that hear of allocations, such as ``torch.profiler``, are told as
    before. Used bytes are taken from the system, so they are the acquired ones as well;
    the current level is what the thread has not given back. The highest level between
    any two readings is kept, so the peak of each call is exact; that of the run counts
    from the level at its begin.

    On a device, it reads the counters of the allocator: the highest level within a call
    is the highest of the readings within it, or the allocator's own peak, if that rose
    during the call. Who has what is in use is known of a device, too, if the core hears
    of its blocks while `heard_allocators` has users.

    counter: what is read of a device; None: the memory is the CPU's.
    log: the sums; and the calls one by one, if it has an `on_fold`.

    Raises:
        MemoryUnavailableError: the native core does not run.
    """

    is_awake = True

    def __init__(self, counter: AllocatorCounter | None = None) -> None:
        self._counter = counter
        self.log: Any = _meter_of_core(counter)

    @property
    def name(self) -> str:
        """Whose memory it is: "cpu", "cuda:0"."""
        if self._counter is None:
            return "cpu"
        index = max(
            self.log.index, -1 if self._counter.index is None else self._counter.index
        )
        return self._counter.kind if index < 0 else f"{self._counter.kind}:{index}"

    @property
    def counts_tensors(self) -> bool:
        """Whether tensors on the CPU are to be counted for it."""
        return self._counter is None

    def serve(self, cursor: Cursor) -> None:
        """Have the cursor read it."""
        cursor.memory = self.log

    def start(self) -> None:
        """Measuring begins, for the first time or again."""
        if self._counter is not None:
            self._counter.check_index()
        self.log.start()

    def settle(self) -> None:
        """Make what was booked readable."""
        self.log.fold()

    def read(self) -> Reading:
        """What the memory's counters say now."""
        reading: Reading = self.log.read()
        return reading


def meter_where(module: torch.nn.Module) -> MemoryMeter | None:
    """The meter of the accelerator that has the first parameter of the module; None if
    none has.

    Raises:
        MemoryUnavailableError: its memory cannot be measured.
    """
    with unnoticed():
        _, first = next(torch.nn.Module.named_parameters(module), ("", None))
        if first is None or device_type_of(first) != current_accelerator():
            return None
        return memory_meter(first.device)


def memory_meter(
    device: str | torch.device | None = None, option: str = "device"
) -> MemoryMeter:
    """The meter of a device's memory. For the parameters, and what it raises, see
    `memory_counter`."""
    return MemoryMeter(memory_counter(device, option))


def _meter_of_core(counter: AllocatorCounter | None) -> Any:
    if CORE.module is None:
        raise MemoryUnavailableError(CORE.needed_for("bytes"))
    if counter is None:
        return NATIVE.MemoryMeter()
    index = -1 if counter.index is None else counter.index
    return NATIVE.MemoryMeter(counter.kind, index, counter)


class _Counting(Attachment):
    """What the native core does to hear of blocks of memory. Its users are trackers.

    name: of the function of the core that begins and ends it, and returns whether it
        goes on.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def put_on(self) -> None:
        self._turn(True)

    def take_off(self) -> bool:
        """Hear of no more; False while somebody else has taken that place. Tensors that
        were counted are still subtracted when freed."""
        return not self._turn(False)

    def _turn(self, on: bool) -> bool:
        return CORE.module is not None and bool(getattr(NATIVE, self._name)(on))


#: It stands in front of torch's allocator for the CPU.
counted_tensors: Final = _Counting("count_tensors")
#: It hears what allocators of devices report to torch's profiler.
heard_allocators: Final = _Counting("hear_allocators")


# All meters of a tracker

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
