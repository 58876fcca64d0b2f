"""What is read at the begin and the end of each call, next to the host's clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from time import perf_counter_ns
from typing import Any, TypeVar

from torchprof_hooks.capture.core import Cursor
from torchprof_hooks.capture.record.memory_log import MemorySums
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.meters.device import DeviceMeter
from torchprof_hooks.capture.tracking.meters.memory import (
    AllocatorMeter,
    MemoryMeter,
    NativeMemoryMeter,
    TensorMemoryMeter,
)

#: What measures something that changes while calls run.
Meter = MemoryMeter | DeviceMeter

SomeMeter = TypeVar("SomeMeter")


class Meters:
    """The meters that a cursor has read where it reads the host's clock.

    Meters are read as near to the call as can be: nothing of ours is between a reading
    and the call. Reading takes time, which is kept out of the time of the call.

    A device that the program has not put into use yet is not read, only looked for
    where an entry begins or a module is called for the first time: a program that never
    uses one pays for no readings.

    awake: meters that are read here. If there are none, the cursor tells nothing.
    asleep: meters of devices that are not in use yet.
    served: meters that the cursor reads itself.
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
        """Have devices read, too, that have come into use. For calls that are open, the
        reading now stands for their begin: what they do from here on is measured."""
        for meter in tuple(self.asleep):
            stamp = meter.read(cursor.site)
            if stamp is None:
                continue
            open_calls = list(cursor.open_sites())
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
        """A call has begun at `site`. Its time begins when all meters are read."""
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
        """Tell the meters that the cursor reads itself of a move in a pass that Python
        follows: the cursor does not hear of such a pass."""
        for meter in self.served:
            meter.pass_moved(closed, opened)

    def _book(self, site: Site, readings: list[Any]) -> None:
        starts, site.readings = site.readings, None
        if starts is not None:
            for meter, start, end in zip(self.awake, starts, readings, strict=True):
                meter.book(site, start, end)


def memory_sums(tracker: Cursor) -> MemorySums | None:
    """What the tracker's calls did with memory; None if that is not measured."""
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
    """Whether `cursor` reads the memory of tensors on the CPU."""
    return bool(meters_of(cursor, TensorMemoryMeter))
