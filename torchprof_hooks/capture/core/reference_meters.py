"""The meters of the reference core: they read the counters of a device's allocator, and
put stamps into its queue of work. The native core does the same in C++."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from torchprof_hooks.capture.core.span_log import Int64s, padded
from torchprof_hooks.capture.record.memory_log import FOLD_AT, MemoryLog
from torchprof_hooks.measure.allocator_counter import AllocatorCounter, Reading
from torchprof_hooks.measure.device_clock import EventClock

if TYPE_CHECKING:
    from torchprof_hooks.capture.record.site import Site

#: Number of waiting spans at which those that the device has finished are booked.
RESOLVE_AT: Final = 1024
#: At one stamp in so many, the device is asked whether it waits. A prime: steps seldom
#: have a multiple of it in stamps, so different places in a step are asked.
ASK_EVERY: Final = 37


class MemoryMeter(MemoryLog):
    """Adds up what calls do with memory, by the counters of an allocator.

    The highest level within a call is the highest of the readings within it, or the
    allocator's own peak, if that rose during the call. So it is exact for calls that
    set the high-water mark of the run, where the allocator keeps one; for others, it is
    the most that was in use at any reading.

    high_water_bytes, blamed: the most that was in use, and the code of the site that
        the thread was working for then.
    """

    index = -1  # the counter knows the device's

    def __init__(self, counter: AllocatorCounter) -> None:
        super().__init__()
        self._counter = counter
        self._allocator_peak = 0
        self.high_water_bytes = self.blamed = 0

    def start(self) -> None:
        """Measuring begins, for the first time or again."""
        self._allocator_peak = self._counter.read()[3]

    def read(self) -> Reading:
        """The counters of the allocator; as the peak, that since the last reading."""
        used, acquired, level, peak = self._counter.read()
        highest = level
        if peak != self._allocator_peak:  # lower, if the program has reset it
            highest = max(level, peak) if peak > self._allocator_peak else level
            self._allocator_peak = peak
        return used, acquired, level, highest

    def read_for(self, owner: Site) -> Reading:
        """The same; `owner` is what the thread was working for until now."""
        reading = self.read()
        level = reading[3]
        owner.peak_bytes = max(owner.peak_bytes, level)
        if level > self.high_water_bytes:
            self.high_water_bytes, self.blamed = level, owner.code
        return reading

    def closed(self, site: Site, start: Reading, end: Reading) -> None:
        """A call at `site` lasted from one reading to the other."""
        peak = max(site.peak_bytes, start[2])
        caller = site.caller
        caller.peak_bytes = max(caller.peak_bytes, peak)
        taken = [end[field] - start[field] for field in range(3)]
        self.entries.extend((site.code, *taken, peak - start[2]))
        if len(self.entries) > FOLD_AT:
            self.fold()


class DeviceMeter:
    """Stamps the device's queue of work, wherever the thread leaves a call for another:
    what the device did between two stamps belongs to the call that was left.

    A stamp waits until the device says that it has passed it: the program never waits
    for the device. Where no stamp is taken (see `EventClock.stamp`), the time until the
    next one belongs to nobody.

    Two devices have no clock in common. So each keeps its own, set to the time that was
    booked until its last stamp; a stamp brings the time forward to that of its device's
    clock. What another device has taken meanwhile is booked already.

    is_awake: whether the device is in use.
    device_ns, marked_ns: booked time, by code of the site: all of it, and that until
        `mark` was called.
    waits: how often the device was asked, before a stamp, whether it waits for the
        host, and how often it did.
    stamps, stamp_ns: how many there are, and what one takes, 0 if that is not known.
    """

    stamp_ns = 0

    def __init__(self, clock: EventClock) -> None:
        self._clock = clock
        self.is_awake = False
        self.device_ns = np.zeros(0, np.int64)
        self.marked_ns = np.zeros(0, np.int64)
        self.waits = (0, 0)
        self.stamps = 0
        self._is_stamping = True
        self._is_interrupted = True
        self._is_unread = False
        self._asked = 0
        #: The code of the call that was left (None at a begin), a stamp, its number.
        self._waiting: deque[tuple[int | None, Any, int]] = deque()
        self._marked_until = 0  # a stamp's number
        self._clocks: dict[Any, tuple[Any, int]] = {}  # by device: last stamp, and time
        self._now_ns = 0  # the time that was booked
        self._booking = threading.Lock()  # stamps are booked in their order

    @property
    def is_stamping(self) -> bool:
        """Whether it is read: not in steps that are measured without stamps."""
        return self._is_stamping

    @is_stamping.setter
    def is_stamping(self, does: bool) -> None:
        self.interrupt()
        self._is_stamping = does

    def wake(self) -> None:
        """Begin to read the device, if the program uses it by now."""
        self.is_awake = self._stamp(None)

    def left(self, code: int) -> None:
        """The thread leaves the call with this code."""
        self._asked += 1
        if self._asked % ASK_EVERY == 0:
            waits = self._clock.waits()  # before the stamp joins the queue
            if waits is not None:
                self.waits = (self.waits[0] + 1, self.waits[1] + waits)
        if not self._stamp(code):
            self.interrupt()

    def interrupt(self) -> None:
        """What was queued since the last stamp belongs to nobody."""
        self._is_interrupted = True

    def mark(self) -> None:
        """Have `marked_ns` be the time between the stamps so far. It is complete when
        the device has passed them all."""
        self._marked_until = self.stamps
        self.marked_ns = self.device_ns.copy()
        self._is_unread = True

    def settle(self) -> bool:
        """Wait for the device, and book everything. Returns whether anything has
        changed since the last time."""
        with self._booking:
            for _ in range(len(self._waiting)):
                waiting = self._waiting.popleft()
                self._clock.wait(waiting[1])
                self._book(*waiting)
        changed, self._is_unread = self._is_unread, False
        return changed

    def _stamp(self, code: int | None) -> bool:
        stamp = self._clock.stamp()
        if stamp is None:
            return False
        self.stamps += 1
        begins, self._is_interrupted = self._is_interrupted, False
        self._waiting.append((None if begins else code, stamp, self.stamps))
        is_due = len(self._waiting) > RESOLVE_AT
        if is_due and self._booking.acquire(blocking=False):
            try:
                self._book_passed()
            finally:
                self._booking.release()
        return True

    def _book_passed(self) -> None:
        while self._waiting and self._clock.is_done(self._waiting[0][1]):
            self._book(*self._waiting.popleft())

    def _book(self, code: int | None, stamp: Any, number: int) -> None:
        if code is None:
            self._clocks.clear()
        before = self._clocks.get(stamp.device)
        now_ns = self._now_ns
        if before is not None:
            last, of_device_ns = before
            now_ns = of_device_ns + self._clock.elapsed_ns(last, stamp)
        self._clocks[stamp.device] = stamp, now_ns
        took_ns, self._now_ns = now_ns - self._now_ns, now_ns
        if code is None or before is None:
            return
        self._is_unread = True
        self.device_ns = _added(self.device_ns, code, took_ns)
        if number <= self._marked_until:
            self.marked_ns = _added(self.marked_ns, code, took_ns)


def _added(sums: Int64s, code: int, more: int) -> Int64s:
    found = padded(sums, code + 1)
    found[code] += more
    return found


class ReadsMeters:
    """The part of a cursor that reads meters, right before and after a call, so that
    none of our own work comes between a reading and the call. The time that reading
    takes is kept out of the time of the call.

    memory, device: the meters; None if that is not measured.
    """

    sites: list[Site]
    site: Site
    outside: Site

    def __init__(self) -> None:
        self.memory: MemoryMeter | None = None
        self.device: DeviceMeter | None = None

    @property
    def times_readings(self) -> bool:
        """Whether the time that reading takes is measured."""
        return self.memory is not None or self._device_in_use() is not None

    def look_for_device(self) -> None:
        """Begin to read the device if the program uses it by now. Asked only where an
        entry begins, or a call that is new, so that a program that never uses a device
        pays for no readings. Open calls are measured from here on."""
        device = self.device
        if device is None or device.is_awake:
            return
        began_ns = perf_counter_ns()
        device.wake()
        self.site.reading_ns += perf_counter_ns() - began_ns

    def read_at_begin(self, site: Site) -> None:
        """A call has begun at `site`. Its time begins when all meters are read."""
        if not self.times_readings:
            return
        caller, began_ns = site.caller, site.start_ns
        site.reading = self._read(caller)
        site.peak_bytes = 0
        site.start_ns = now_ns = perf_counter_ns()
        caller.reading_ns += now_ns - began_ns

    def read_at_end(self, site: Site, end_ns: int) -> None:
        """Read the meters at the end of the call at `site`, before it is booked."""
        if not self.times_readings:
            return
        now = self._read(site)
        site.caller.reading_ns += perf_counter_ns() - end_ns
        self._book(site, now)

    def owners_moved(self, closed: Sequence[Site], opened: Sequence[Site]) -> None:
        """Read the meters where a pass has moved to other owners.

        closed: the calls that ended, innermost first.
        opened: those that began, outermost first.
        """
        if not self.times_readings:
            return
        around = opened[0].caller if opened else closed[-1].caller
        began_ns = perf_counter_ns()
        now = self._read(closed[0] if closed else around)
        around.reading_ns += perf_counter_ns() - began_ns
        for site in closed:
            self._book(site, now)
        now_ns = perf_counter_ns()
        for site in opened:
            site.reading = now
            site.peak_bytes = 0
            site.start_ns = now_ns

    def read_memory(self) -> tuple[Int64s, ...]:
        """What calls have done with memory so far, open ones included (see
        `MemorySums`)."""
        log = self.memory
        assert log is not None
        log.fold()
        # Copies, each padded from its own length.
        kept = (log.used, log.acquired, log.retained, log.peak)
        sums = tuple(padded(each, len(self.sites)).copy() for each in kept)
        now = log.read()
        peak, site = now[2], self.site
        while site is not self.outside:
            if (began := site.reading) is not None:
                peak = max(peak, site.peak_bytes)
                for field in range(3):
                    sums[field][site.code] += now[field] - began[field]
                sums[3][site.code] = max(sums[3][site.code], peak - began[2])
            site = site.caller
        return sums

    def _device_in_use(self) -> DeviceMeter | None:
        device = self.device
        if device is None or not (device.is_awake and device.is_stamping):
            return None
        return device

    def _read(self, left: Site) -> Reading | None:
        """Read the meters where the thread leaves a call; returns what memory says."""
        device = self._device_in_use()
        if device is not None:
            device.left(left.code)
        return None if self.memory is None else self.memory.read_for(left)

    def _book(self, site: Site, now: Reading | None) -> None:
        began, site.reading = site.reading, None
        if self.memory is not None and began is not None and now is not None:
            self.memory.closed(site, began, now)
