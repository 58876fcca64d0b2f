"""What calls do with memory: by the counters of an allocator, or as the native core
counts it: that of tensors on the CPU, to the byte, and of a device, as its allocator
says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from torchprof_hooks.capture.attach.attachments import Attachment
from torchprof_hooks.capture.core import CORE, Cursor
from torchprof_hooks.capture.core.span_log import padded
from torchprof_hooks.capture.record.memory_log import FOLD_AT, MemoryLog, MemorySums
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.measure.allocator_counter import AllocatorCounter
from torchprof_hooks.measure.memory_counter import MemoryCounter, Reading
from torchprof_hooks.measure.memory_counter import memory_counter as device_counter
from torchprof_hooks.profiles.errors import MemoryUnavailableError


class MemoryMeter:
    """Adds up what calls do with memory.

    log: the sums, and the calls one by one for whoever asked.
    """

    log: Any

    @property
    def counter(self) -> MemoryCounter:
        """What is read."""
        raise NotImplementedError

    def high_water(self) -> tuple[int, Site | None]:
        """The highest level of the run, and the site whose work reached it."""
        raise NotImplementedError

    def sums(self, cursor: Cursor) -> MemorySums:
        """What calls have done so far, open ones included."""
        raise NotImplementedError

    def start(self) -> None:
        """Measuring begins, for the first time or again."""
        raise NotImplementedError

    def counting_ns(self) -> float:
        """What counting a block of memory takes, where each is counted."""
        return 0.0

    def settle(self) -> None:
        """Make what was booked readable."""
        self.log.fold()


class AllocatorMeter(MemoryMeter):
    """Reads the counters of an allocator.

    The highest level within a call is the highest of the readings within it, or the
    allocator's own peak, if that rose during the call. So it is exact for calls that
    set the high-water mark of the run, where the allocator keeps one; for others, it is
    the most that was in use at any reading.
    """

    def __init__(self, counter: MemoryCounter) -> None:
        self._counter = counter
        self.log = MemoryLog()
        self._high_water_bytes = 0
        self._blamed: Site | None = None
        self._allocator_peak = 0

    @property
    def counter(self) -> MemoryCounter:
        return self._counter

    def high_water(self) -> tuple[int, Site | None]:
        return self._high_water_bytes, self._blamed

    def sums(self, cursor: Cursor) -> MemorySums:
        log, size = self.log, len(cursor.sites)
        # Copies, each padded from its own length.
        kept = (log.used, log.acquired, log.retained, log.peak, np.zeros(0, np.int64))
        sums = MemorySums(*(padded(each, size).copy() for each in kept))
        used, acquired, level, _ = self._counter.read()
        assert cursor.meters is not None  # this is one of them
        peak = level
        for site in cursor.open_sites():
            began = cursor.meters.reading_of(site, self)
            if began is not None:
                peak = max(peak, site.peak_bytes)
                sums.used[site.code] += used - began[0]
                sums.acquired[site.code] += acquired - began[1]
                sums.retained[site.code] += level - began[2]
                sums.peak[site.code] = max(sums.peak[site.code], peak - began[2])
        return sums

    def start(self) -> None:
        self._allocator_peak = self._counter.read()[3]

    def read(self, owner: Site) -> Reading:
        """A reading; `owner` is what the thread was working for until now."""
        reading = self._counter.read()
        level, peak = reading[2:]
        if peak != self._allocator_peak:  # lower, if the program has reset it
            level = max(level, peak) if peak > self._allocator_peak else level
            self._allocator_peak = peak
        owner.peak_bytes = max(owner.peak_bytes, level)
        if level > self._high_water_bytes:
            self._high_water_bytes = level
            self._blamed = owner
        return reading

    def book(self, site: Site, start: Reading, end: Reading) -> None:
        """A call at `site` lasted from one reading to the other."""
        peak = max(site.peak_bytes, start[2])
        caller = site.caller
        caller.peak_bytes = max(caller.peak_bytes, peak)
        entries = self.log.entries
        entries.extend(
            (
                site.code,
                end[0] - start[0],
                end[1] - start[1],
                end[2] - start[2],
                peak - start[2],
            )
        )
        if len(entries) > FOLD_AT:
            self.log.fold()


class NativeMemoryMeter(MemoryMeter):
    """A meter that the native core reads itself at each begin and end of a call, as it
    reads the clock. It is a `MemoryCounter`, too."""

    def __init__(self, *device: Any) -> None:
        assert CORE.module is not None
        #: What reads and adds up, for a cursor (see `Cursor.memory`).
        self.log: Any = CORE.module.MemoryMeter(*device)
        self._sites: Sequence[Site] = ()

    @property
    def counter(self) -> MemoryCounter:
        return self

    @property
    def name(self) -> str:
        raise NotImplementedError

    def read(self) -> Reading:
        reading: Reading = self.log.read()
        return reading

    def serve(self, cursor: Cursor) -> None:
        """Have the cursor read it."""
        cursor.memory, self._sites = self.log, cursor.sites

    def pass_moved(self, closed: list[Site], opened: list[Site]) -> None:
        self.log.moved(closed, opened)

    def high_water(self) -> tuple[int, Site | None]:
        highest = int(self.log.high_water_bytes)
        return highest, self._sites[self.log.blamed] if highest else None

    def sums(self, cursor: Any) -> MemorySums:
        return MemorySums(*cursor.read_memory())

    def start(self) -> None:
        self.log.start()

    def counting_ns(self) -> float:
        return float(self.log.counting_ns)


class TensorMemoryMeter(NativeMemoryMeter):
    """Counts what one thread, the first to start or read it, allocates for tensors on
    the CPU.

    Tensors are counted while `counted_tensors` has users: the core then stands in front
    of torch's allocator. Others that hear of allocations, such as ``torch.profiler``,
    are told as before. Used bytes are taken from the system, so they are the acquired
    ones as well; the current level is what the thread has not given back. The highest
    level between any two readings is kept, so the peak of each call is exact; that of
    the run counts from the level at its begin.
    """

    name = "cpu"


class DeviceMemoryMeter(NativeMemoryMeter):
    """Reads what an `AllocatorCounter` does, without torch's dictionary of all that the
    allocator counts: that took 10 us at each begin and end of a call. For peaks, see
    `AllocatorMeter`."""

    def __init__(self, counter: AllocatorCounter) -> None:
        index = -1 if counter.index is None else counter.index
        super().__init__(counter.kind, index)
        self._counter = counter

    @property
    def name(self) -> str:
        kind, index = self._counter.kind, self.log.index
        return kind if index < 0 else f"{kind}:{index}"

    def start(self) -> None:
        self._counter.check_index()
        super().start()


def memory_meter(counter: MemoryCounter) -> MemoryMeter:
    """What adds up the readings of `counter`."""
    return counter if isinstance(counter, MemoryMeter) else AllocatorMeter(counter)


def memory_counter(
    device: str | torch.device | None = None, option: str = "device"
) -> MemoryCounter:
    """The counter of a device: the native core's, where that runs and can ask the
    device's allocator, else the one that `measure` has."""
    found = device_counter(device, option, of_cpu=_counter_of_cpu)
    if CORE.module is None or not isinstance(found, AllocatorCounter):
        return found
    is_asked = CORE.module.counts_device_bytes(found.kind)
    return DeviceMemoryMeter(found) if is_asked else found


def _counter_of_cpu() -> MemoryCounter:
    if CORE.module is None:
        raise MemoryUnavailableError(
            f"bytes on the CPU need the native core, which does not run: {CORE.reason}"
        )
    return TensorMemoryMeter()


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
