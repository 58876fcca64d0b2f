"""The meters of the reference core: they read the counters of a device's allocator, and
put stamps into its queue of work. The native core does the same in C++."""

from __future__ import annotations

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
ASK_EVERY: Final = 17


class MemoryMeter(MemoryLog):
    """Adds up what calls do with memory, by the counters of an allocator.

    The highest level within a call is the highest of the readings within it, or the
    allocator's own peak, if that rose during the call. So it is exact for calls that
    set the high-water mark of the run, where the allocator keeps one; for others, it is
    the most that was in use at any reading.

    high_water_bytes, blamed: the most that was in use, and the code of the site that
        the thread was working for then.
    counting_ns: what counting a block of memory takes, where each is counted.
    """

    counting_ns = 0.0
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
        """The counters of the allocator."""
        return self._counter.read()

    def read_for(self, owner: Site) -> Reading:
        """The same; `owner` is what the thread was working for until now."""
        reading = self._counter.read()
        level, peak = reading[2:]
        if peak != self._allocator_peak:  # lower, if the program has reset it
            level = max(level, peak) if peak > self._allocator_peak else level
            self._allocator_peak = peak
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
    """Stamps the device's queue of work.

    A span waits, with its two stamps, until the device says that it has passed them:
    the program never waits for the device. Spans without stamps (see
    `EventClock.stamp`) count on the host only.

    is_awake: whether the device is in use, and read.
    device_ns, marked_ns: time of booked spans, by code of the site: of all, and of
        those that had ended when `mark` was called.
    waits: how often the device was asked, before a stamp, whether it waits for the
        host, and how often it did.
    """

    def __init__(self, clock: EventClock) -> None:
        self._clock = clock
        self.is_awake = False
        self.device_ns = np.zeros(0, np.int64)
        self.marked_ns = np.zeros(0, np.int64)
        self.waits = (0, 0)
        self._waiting: deque[tuple[int, Any, Any]] = deque()
        self._unmarked = 0  # spans before `mark` that wait
        self._stamps = 0
        self._is_unread = False

    def wake(self) -> Any:
        """Begin to read the device if the program uses it by now. Returns the first
        stamp then, else None."""
        stamp = self._clock.stamp()
        self.is_awake = stamp is not None
        return stamp

    def stamp(self) -> Any:
        """A stamp; None if none can be taken."""
        self._stamps += 1
        if self._stamps % ASK_EVERY == 0:
            waits = self._clock.waits()  # before the stamp joins the queue
            if waits is not None:
                self.waits = (self.waits[0] + 1, self.waits[1] + waits)
        return self._clock.stamp()

    def closed(self, site: Site, start: Any, end: Any) -> None:
        """A call at `site` lasted from one stamp to the other."""
        self._waiting.append((site.code, start, end))
        if len(self._waiting) > RESOLVE_AT:
            self._book_done()

    def mark(self) -> None:
        """Have `marked_ns` be the time of the spans that have ended so far. It is
        complete when the device has passed them all."""
        self._unmarked = len(self._waiting)
        self.marked_ns = self.device_ns.copy()
        self._is_unread = True

    def settle(self) -> bool:
        """Wait for the device, and book everything. Returns whether anything has
        changed since the last time."""
        while (span := self._next_span()) is not None:
            _, start, end = span
            self._clock.wait(start)
            self._clock.wait(end)
            self._book(*span)
        changed, self._is_unread = self._is_unread, False
        return changed

    def _book_done(self) -> None:
        while (span := self._next_span()) is not None:
            _, start, end = span
            # The end may be in another queue than the start, and be passed first.
            if not (self._clock.is_done(end) and self._clock.is_done(start)):
                self._waiting.appendleft(span)
                return
            self._book(*span)

    def _next_span(self) -> tuple[int, Any, Any] | None:
        try:
            return self._waiting.popleft()
        except IndexError:  # not asked before: another thread may take the last one
            return None

    def _book(self, code: int, start: Any, end: Any) -> None:
        self._is_unread = True
        elapsed_ns = self._clock.elapsed_ns(start, end)
        self.device_ns = padded(self.device_ns, code + 1)
        self.device_ns[code] += elapsed_ns
        if self._unmarked:
            self._unmarked -= 1
            self.marked_ns = padded(self.marked_ns, code + 1)
            self.marked_ns[code] += elapsed_ns


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
        pays for no readings. Open calls take the first reading as that of their begin:
        they are measured from here on."""
        device = self.device
        if device is None or device.is_awake:
            return
        began_ns = perf_counter_ns()
        stamp, site = device.wake(), self.site
        while stamp is not None and site is not self.outside:
            site.readings = (site.readings[0] if site.readings else None, stamp)
            site = site.caller
        self.site.reading_ns += perf_counter_ns() - began_ns

    def read_at_begin(self, site: Site) -> None:
        """A call has begun at `site`. Its time begins when all meters are read."""
        if not self.times_readings:
            return
        caller, began_ns = site.caller, site.start_ns
        site.readings = self._read(caller)
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
            site.readings = now
            site.peak_bytes = 0
            site.start_ns = now_ns

    def read_memory(self) -> tuple[Int64s, ...]:
        """What calls have done with memory so far, open ones included (see
        `MemorySums`)."""
        log = self.memory
        assert log is not None
        log.fold()
        # Copies, each padded from its own length.
        kept = (log.used, log.acquired, log.retained, log.peak, np.zeros(0, np.int64))
        sums = tuple(padded(each, len(self.sites)).copy() for each in kept)
        now = log.read()
        peak, site = now[2], self.site
        while site is not self.outside:
            began = site.readings and site.readings[0]
            if began:
                peak = max(peak, site.peak_bytes)
                for field in range(3):
                    sums[field][site.code] += now[field] - began[field]
                sums[3][site.code] = max(sums[3][site.code], peak - began[2])
            site = site.caller
        return sums

    def _device_in_use(self) -> DeviceMeter | None:
        device = self.device
        return device if device is not None and device.is_awake else None

    def _read(self, owner: Site) -> tuple[Reading | None, Any]:
        memory, device = self.memory, self._device_in_use()
        return (
            None if memory is None else memory.read_for(owner),
            None if device is None else device.stamp(),
        )

    def _book(self, site: Site, now: tuple[Reading | None, Any]) -> None:
        began, site.readings = site.readings, None
        if began is None:
            return
        for meter, start, end in zip(
            (self.memory, self.device), began, now, strict=True
        ):
            if meter is not None and start is not None and end is not None:
                meter.closed(site, start, end)
