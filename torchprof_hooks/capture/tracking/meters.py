"""What is read at the begin and the end of each call, next to the host's clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from time import perf_counter_ns
from typing import Any, TypeVar

from torchprof_hooks.capture.core import Cursor
from torchprof_hooks.capture.core.span_log import padded
from torchprof_hooks.capture.record.memory_log import FOLD_AT, MemoryLog, MemorySums
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.device_meter import DeviceMeter
from torchprof_hooks.capture.tracking.native_memory import NativeCounter, TensorCounter
from torchprof_hooks.measure.memory_counter import MemoryCounter, Reading


class MemoryMeter:
    """Adds up what calls do with memory.

    log: the sums, and the calls one by one for whoever asked.
    """

    def __init__(self, counter: MemoryCounter, log: Any) -> None:
        self.counter = counter
        self.log = log

    def high_water(self) -> tuple[int, Site | None]:
        """The highest level of the run, and whose work that was."""
        raise NotImplementedError

    def sums(self, cursor: Cursor) -> MemorySums:
        """What calls have done, also those that are open, so far."""
        raise NotImplementedError

    def start(self) -> None:
        """Measuring begins, for the first time or again."""
        raise NotImplementedError

    def settle(self) -> None:
        """Make what was booked readable."""
        self.log.fold()


class AllocatorMeter(MemoryMeter):
    """Reads the counters of an allocator.

    The highest level within a call is that of the readings within it, and what the
    allocator itself says was its highest level, wherever that rose during the call. So
    it is exact for the calls that set the high-water mark of the run, where the
    allocator keeps one, and elsewhere the most that was in use at any reading.
    """

    def __init__(self, counter: MemoryCounter) -> None:
        super().__init__(counter, MemoryLog())
        self._high_water_bytes = 0
        self._blamed: Site | None = None
        self._allocator_peak = 0

    def high_water(self) -> tuple[int, Site | None]:
        """See `MemoryMeter`."""
        return self._high_water_bytes, self._blamed

    def sums(self, cursor: Cursor) -> MemorySums:
        """See `MemoryMeter`."""
        log, size = self.log, len(cursor.sites)
        # Copies: each by its own length.
        sums = MemorySums(
            *(
                padded(each, size).copy()
                for each in (log.used, log.acquired, log.retained, log.peak)
            )
        )
        used, acquired, level, _ = self.counter.read()
        peak, site, meters = level, cursor.site, cursor.meters
        while site is not cursor.outside and meters is not None:
            began = meters.reading_of(site, self)
            if began is not None:
                peak = max(peak, site.peak_bytes)
                sums.used[site.code] += used - began[0]
                sums.acquired[site.code] += acquired - began[1]
                sums.retained[site.code] += level - began[2]
                sums.peak[site.code] = max(sums.peak[site.code], peak - began[2])
            site = site.caller
        return sums

    def start(self) -> None:
        """See `MemoryMeter`. What the allocator's peak was by now is not ours."""
        self._allocator_peak = self.counter.read()[3]

    def read(self, owner: Site) -> Reading:
        """A reading; `owner` is what the thread was working for until now."""
        reading = self.counter.read()
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
    """What the native core reads itself at each begin and end of a call, as it reads
    the clock.

    Of tensors on the CPU it keeps the highest level between any two readings, so that
    within each call is exact, and the highest of the run is that above the level at its
    begin. Of a device, see `AllocatorMeter`.
    """

    def __init__(self, counter: NativeCounter) -> None:
        super().__init__(counter, counter.meter)
        self._sites: Sequence[Site] = ()

    def serve(self, cursor: Cursor) -> None:
        """Have the cursor read it."""
        cursor.memory, self._sites = self.log, cursor.sites

    def pass_moved(self, closed: list[Site], opened: list[Site]) -> None:
        """See `Meters.pass_moved`."""
        self.log.moved(closed, opened)

    def high_water(self) -> tuple[int, Site | None]:
        """See `MemoryMeter`."""
        highest = int(self.log.high_water_bytes)
        return highest, self._sites[self.log.blamed] if highest else None

    def sums(self, cursor: Any) -> MemorySums:
        """See `MemoryMeter`."""
        return MemorySums(*cursor.read_memory())

    def start(self) -> None:
        """See `MemoryMeter`. Which thread does this is counted."""
        self.counter.read()


def memory_meter(counter: MemoryCounter) -> MemoryMeter:
    """What adds up the readings of `counter`."""
    if isinstance(counter, NativeCounter):
        return NativeMemoryMeter(counter)
    return AllocatorMeter(counter)


#: What measures something that changes while calls run.
Meter = MemoryMeter | DeviceMeter

SomeMeter = TypeVar("SomeMeter")


class Meters:
    """What a cursor has read where it reads the host's clock.

    Meters are read as near to the call as can be: nothing of ours is between a reading
    and the call. Reading takes time, which is kept out of the time of the call.

    A device that the program has not put into use yet is left out of it: until then it
    is looked for where an outermost call begins, or a module is called for the first
    time, and a program that never uses one pays for no reading of it.

    awake: what is read. If there is nothing, the cursor tells nothing.
    asleep: meters of devices that are not in use yet.
    served: what the cursor reads itself.
    """

    def __init__(self, meters: Sequence[Meter]) -> None:
        self.asleep = [meter for meter in meters if isinstance(meter, DeviceMeter)]
        self.served: list[NativeMemoryMeter | DeviceMeter] = [
            meter for meter in meters if isinstance(meter, NativeMemoryMeter)
        ]
        self.awake: list[AllocatorMeter | DeviceMeter] = [
            meter for meter in meters if isinstance(meter, AllocatorMeter)
        ]

    def __iter__(self) -> Iterator[Meter]:
        return chain(self.awake, self.served)

    def announce(self, cursor: Cursor) -> None:
        """Have the cursor tell, and read, what is needed."""
        cursor.reads_meters = bool(self.awake)
        cursor.watches = bool(self.asleep)
        for meter in self.served:
            if isinstance(meter, NativeMemoryMeter):
                meter.serve(cursor)

    def start(self, cursor: Cursor) -> None:
        """Measuring begins, for the first time or again."""
        for meter in self:
            meter.start()
        self.look_for_devices(cursor)

    def look_for_devices(self, cursor: Cursor) -> None:
        """Read those devices, too, that have come into use. For calls that are open
        they are read now: what they do from here on is measured."""
        for meter in tuple(self.asleep):
            stamp = meter.read(cursor.site)
            if stamp is None:
                continue
            open_calls = list(_calls_around(cursor.site, cursor.outside))
            self.asleep.remove(meter)
            if meter.serve(cursor, open_calls):
                self.served.append(meter)
            else:
                self._wake(meter, stamp, open_calls, cursor.reads_meters)
            self.announce(cursor)

    def _wake(
        self, meter: DeviceMeter, stamp: Any, open_calls: list[Site], were_read: bool
    ) -> None:
        for site in open_calls:
            if site.readings is not None or not were_read:
                site.readings = [*(site.readings or ()), stamp]
        self.awake.append(meter)

    def reading_of(self, site: Site, meter: AllocatorMeter) -> Any:
        """What a meter said when the call began that is open at `site`; None if it was
        not read then."""
        readings = site.readings or ()
        place = self.awake.index(meter)
        return readings[place] if place < len(readings) else None

    def settle(self) -> None:
        """Make what was booked readable."""
        for meter in self:
            meter.settle()

    # What a cursor tells

    def opened(self, site: Site) -> None:
        """A call has begun at `site`, and begins when all has been read."""
        caller, began_ns = site.caller, site.start_ns
        site.readings = [meter.read(caller) for meter in self.awake]
        site.peak_bytes = 0
        site.start_ns = now_ns = perf_counter_ns()
        caller.reading_ns += now_ns - began_ns

    def closing(self, site: Site, end_ns: int) -> None:
        """The call at `site` has ended, and nothing is booked yet."""
        readings = [meter.read(site) for meter in self.awake]
        site.caller.reading_ns += perf_counter_ns() - end_ns
        self._book(site, readings)

    def moved(self, closed: list[Site], opened: list[Site]) -> None:
        """A pass has gone over to other owners: calls that ended, innermost first, and
        those that began, outermost first."""
        around = opened[0].caller if opened else closed[-1].caller
        began_ns = perf_counter_ns()
        owner = closed[0] if closed else around
        readings = [meter.read(owner) for meter in self.awake]
        around.reading_ns += perf_counter_ns() - began_ns
        for site in closed:
            self._book(site, readings)
        now_ns = perf_counter_ns()
        for site in opened:
            site.readings = readings
            site.peak_bytes = 0
            site.start_ns = now_ns

    def pass_moved(self, closed: list[Site], opened: list[Site]) -> None:
        """The same, of a pass that Python follows: a cursor that reads meters itself
        does not hear of such a pass."""
        for meter in self.served:
            meter.pass_moved(closed, opened)

    def _book(self, site: Site, readings: list[Any]) -> None:
        starts, site.readings = site.readings, None
        if starts is not None:
            for meter, start, end in zip(self.awake, starts, readings, strict=True):
                meter.book(site, start, end)


def _calls_around(site: Site, outside: Site) -> Iterator[Site]:
    while site is not outside:
        yield site
        site = site.caller


def memory_sums(tracker: Cursor) -> MemorySums | None:
    """What its calls have done, None if memory is not measured."""
    for meter in meters_of(tracker, MemoryMeter):
        meter.settle()
        return meter.sums(tracker)
    return None


def meters_of(cursor: Cursor, kind: type[SomeMeter]) -> list[SomeMeter]:
    """The meters of one kind that a cursor reads."""
    meters = cursor.meters
    if meters is None:
        return []
    return [meter for meter in meters if isinstance(meter, kind)]


def counts_tensors(cursor: Cursor) -> bool:
    """Whether it reads the memory of tensors on the CPU."""
    meters = meters_of(cursor, NativeMemoryMeter)
    return any(isinstance(meter.counter, TensorCounter) for meter in meters)
