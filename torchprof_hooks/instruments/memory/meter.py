"""What calls do with memory: tensors on the CPU, counted to the byte; or the memory of
a device, as its allocator counts it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from torchprof_hooks.kernel.attachments import Attachment
from torchprof_hooks.kernel.core import CORE, NATIVE
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.reading import Reading
from torchprof_hooks.kernel.reference.span_log import Int64s, at_length
from torchprof_hooks.measure.memory_counter import (
    AllocatorCounter,
    MemoryReading,
    memory_counter,
)
from torchprof_hooks.profiles.errors import MemoryUnavailableError
from torchprof_hooks.profiles.memory import NO_MEMORY, MemoryTotals


class MemorySums(NamedTuple):
    """Sums by code of the site (see `MemoryTotals`), all with inner calls."""

    used: Int64s
    acquired: Int64s
    retained: Int64s
    peak: Int64s


class MemoryMeter(Observer):
    """Has the core add up what calls do with memory: it reads memory at each begin and
    end of a call, as it reads the clock.

    On the CPU, it counts what one thread, the first to start or read it, allocates for
    tensors while `counted_tensors` has users: the core then stands in front of torch's
    allocator. Others that observe allocations, such as ``torch.profiler``, are notified
    as before. Used bytes are taken from the system, so they are the acquired ones as
    well; the current level is what the thread has not given back. The highest level
    between any two readings is kept, so the peak of each call is exact; that of the run
    counts from the level at its begin.

    On a device, it reads the counters of the allocator: the highest level within a call
    is the highest of the readings within it, or the allocator's own peak, if that rose
    during the call. Who has what is in use is known of a device, too, if the core
    observes its blocks while `observed_allocators` has users.

    counter: what is read of a device; None: the memory is the CPU's.
    log: the sums; and the calls one by one, if it has an `on_fold`.

    Raises:
        MemoryUnavailableError: the native core does not run.
    """

    def __init__(self, counter: AllocatorCounter | None = None) -> None:
        self._counter = counter
        self._first: MemorySums | None = None  # of the first step
        self.attachments = (counted_tensors,) if counter is None else ()
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

    # As an observer

    def follow(self, reading: Reading) -> None:
        super().follow(reading)
        reading.memory = self.log

    def began(self) -> None:
        self.start()

    def go_on_with(self, counter: AllocatorCounter) -> None:
        """Measure a device from now on; calls that are open are measured from here."""
        MemoryMeter.__init__(self, counter)
        self.follow(self.reading)

    def start(self) -> None:
        """Count from now on, for the first time or again."""
        if self._counter is not None:
            self._counter.check_index()
        self.log.start()

    def first_step_ended(self) -> None:
        self.settle()
        self._first = MemorySums(*self.reading.read_memory())

    def settle(self) -> None:
        self.log.fold()

    def columns(self, calls: Int64s, of_first_step: bool) -> dict[str, Sequence[Any]]:
        """Own memory of each site, read where calls begin and end."""
        sums = self._first if of_first_step else MemorySums(*self.reading.read_memory())
        if sums is None:
            return {}
        size = len(calls)
        used, acquired, retained = map(self.reading.own, sums[:3])
        peak = at_length(sums.peak, size).tolist()
        own = [*map(MemoryTotals, used, acquired, retained, peak)]
        own[self.reading.outside.code] = NO_MEMORY  # not read there
        return {"memory": own}

    # Reading it

    def read(self) -> MemoryReading:
        """What the memory's counters say now."""
        found: MemoryReading = self.log.read()
        return found


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
    """What the native core does to observe blocks of memory. Its users are trackers.

    name: of the function of the core that begins and ends it, and returns whether it
        goes on.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def put_on(self) -> None:
        self._turn(True)

    def take_off(self) -> bool:
        """Observe no more; False while somebody else has taken that place. Tensors that
        were counted are still subtracted when freed."""
        return not self._turn(False)

    def _turn(self, on: bool) -> bool:
        return CORE.module is not None and bool(getattr(NATIVE, self._name)(on))


#: The core stands in front of torch's allocator for the CPU.
counted_tensors: Final = _Counting("count_tensors")
#: It observes what allocators of devices report to torch's profiler.
observed_allocators: Final = _Counting("observe_allocators")
