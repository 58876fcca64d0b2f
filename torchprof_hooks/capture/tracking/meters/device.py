"""How long calls keep an accelerator busy, by stamps in its queue of work."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

from torchprof_hooks.capture.core import CORE, Cursor
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.measure.device_clock import DeviceClock, EventClock

#: Number of waiting spans at which those that the device has finished are booked.
RESOLVE_AT: Final = 1024
#: At one stamp in so many, the device is asked whether it waits. A prime: steps seldom
#: have a multiple of it in stamps, so different places in a step are asked.
ASK_EVERY: Final = 17


class Waits(NamedTuple):
    """How often a device was asked, before a stamp, whether it waits for the host, and
    how often it did: it had done all that it was given."""

    asked: int
    waited: int

    @property
    def share(self) -> float:
        """From 0.0, for a device that always has something to do, to 1.0."""
        return self.waited / self.asked if self.asked else 0.0


class DeviceMeter:
    """Stamps the device's queue of work.

    A span waits, with its two stamps, until the device says that it has passed them:
    the program never waits for the device. Spans without stamps (see
    `DeviceClock.stamp`) count on the host only.

    The native core takes the stamps itself, and keeps the spans, where the clock is
    that of an accelerator of torch's (see `EventClock.device_type`).
    """

    def __init__(self, clock: DeviceClock) -> None:
        self.clock = clock
        self.device_ns: dict[int, int] = {}  # by code of the site, as settled
        self.marked_ns: dict[int, int] = {}  # likewise, of spans before `mark`
        self._waiting: deque[tuple[int, Any, Any]] = deque()
        self._unmarked = 0  # spans before `mark` that wait
        self._stamps = self._asked = self._waited = 0
        self._is_in_use = False
        self._native: Any = None

    @property
    def waits(self) -> Waits:
        """How often the device waited for the host."""
        if self._native is not None:
            return Waits(*self._native.waits)
        return Waits(self._asked, self._waited)

    def serve(self, cursor: Cursor, open_calls: list[Site]) -> bool:
        """Have the cursor read it from now on, also for calls that are open. False: the
        cursor cannot, for lack of a native core or of a clock of torch's."""
        kind = self.clock.device_type if isinstance(self.clock, EventClock) else None
        if CORE.module is None or kind is None:
            return False
        assert isinstance(self.clock, EventClock)
        self._native = cursor.device = CORE.module.DeviceMeter(
            kind, self.clock.is_in_use, self.clock.is_capturing
        )
        self._native.moved([], open_calls)
        return True

    def pass_moved(self, closed: list[Site], opened: list[Site]) -> None:
        self._native.moved(closed, opened)

    def start(self) -> None:
        """Measuring begins; there is nothing to do."""

    def read(self, owner: Site) -> Any:
        if self._is_in_use:
            self._stamps += 1
            if self._stamps % ASK_EVERY == 0 and isinstance(self.clock, EventClock):
                waits = self.clock.waits()  # before the stamp joins the queue
                self._asked += waits is not None
                self._waited += waits is True
        stamp = self.clock.stamp()
        self._is_in_use = stamp is not None
        return stamp

    def book(self, site: Site, start: Any, end: Any) -> None:
        if start is None or end is None:
            return
        self._waiting.append((site.code, start, end))
        if len(self._waiting) > RESOLVE_AT:
            self._resolve_done()

    def mark(self) -> None:
        """Keep the time of spans that have ended so far apart, in `marked_ns`. It is
        complete when the device has passed them all."""
        if self._native is not None:
            self._native.mark()
        self._unmarked = len(self._waiting)
        self.marked_ns = dict(self.device_ns)

    def settle(self) -> None:
        """Wait for the device and book everything. For reports, not for steps."""
        if self._native is not None and self._native.settle():
            self.device_ns = dict(enumerate(self._native.device_ns.tolist()))
            self.marked_ns = dict(enumerate(self._native.marked_ns.tolist()))
        while (span := self._next_span()) is not None:
            _, start, end = span
            self.clock.wait(start)
            self.clock.wait(end)
            self._resolve(*span)

    def _resolve_done(self) -> None:
        while (span := self._next_span()) is not None:
            _, start, end = span
            # The end may be in another queue than the start, and be passed first.
            if not (self.clock.is_done(end) and self.clock.is_done(start)):
                self._waiting.appendleft(span)
                return
            self._resolve(*span)

    def _next_span(self) -> tuple[int, Any, Any] | None:
        try:
            return self._waiting.popleft()
        except IndexError:  # not asked before: another thread may take the last one
            return None

    def _resolve(self, code: int, start: Any, end: Any) -> None:
        elapsed_ns = self.clock.elapsed_ns(start, end)
        self.device_ns[code] = self.device_ns.get(code, 0) + elapsed_ns
        if self._unmarked:
            self._unmarked -= 1
            self.marked_ns[code] = self.marked_ns.get(code, 0) + elapsed_ns
