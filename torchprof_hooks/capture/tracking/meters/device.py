"""How long calls keep an accelerator busy, by stamps in its queue of work."""

from __future__ import annotations

from typing import NamedTuple

from torchprof_hooks.capture.core import CORE, NATIVE, Cursor
from torchprof_hooks.capture.core.span_log import NO_SUMS, Int64s, at_length
from torchprof_hooks.capture.tracking.meters.stamped_steps import StampedSteps
from torchprof_hooks.measure.device_clock import EventClock, default_device_clock


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
    """Stamps a device's queue of work where the thread leaves a call for another: the
    core does, once the program uses the device. What the device did between two stamps
    belongs to the call that was left.

    stamped_steps: in which steps it does.
    """

    def __init__(self, clock: EventClock) -> None:
        self.name = clock.name
        self._core = NATIVE.DeviceMeter(
            clock.name, clock.is_initialized, clock.is_in_use, clock.is_capturing
        )
        self.stamped_steps = StampedSteps(self._core)
        #: By code of the site, as of the last `settle`; and calls as of the mark.
        self._own_ns = self._marked_ns = self._marked_calls = NO_SUMS

    @property
    def is_awake(self) -> bool:
        """Whether the program uses the device."""
        return bool(self._core.is_awake)

    @property
    def waits(self) -> Waits:
        """How often the device waited for the host."""
        return Waits(*self._core.waits)

    def serve(self, cursor: Cursor) -> None:
        """Have the cursor read it."""
        cursor.device = self._core

    def start(self) -> None:
        """Measuring begins, for the first time or again."""
        self._core.interrupt()

    def mark(self, calls: Int64s) -> None:
        """The first step has ended. calls: how many have ended, by code."""
        self._marked_calls = calls
        self._core.mark()

    def settle(self) -> None:
        """Wait for the device and book everything. For reports, not for steps."""
        if self._core.settle():
            self._own_ns, self._marked_ns = self._core.device_ns, self._core.marked_ns

    def own_ns(self, calls: Int64s) -> list[int]:
        """Own time of each site on the device, as of the last `settle`; that of steps
        that were not stamped is estimated. calls: how many have ended, by code."""
        size = len(calls)
        first_ns = at_length(self._marked_ns, size)
        later_ns = at_length(self._own_ns, size) - first_ns
        marked_calls = at_length(self._marked_calls, size)
        factors = self.stamped_steps.factors(calls, marked_calls)
        own_ns: list[float] = (first_ns + later_ns * factors).clip(min=0).tolist()
        return [*map(round, own_ns)]

    def own_ns_of_first_step(self, size: int) -> list[int]:
        """The same of the first step alone, which is always stamped."""
        own_ns: list[int] = at_length(self._marked_ns, size).clip(min=0).tolist()
        return own_ns


def device_meters() -> list[DeviceMeter]:
    """A meter for the accelerator of this machine, if there is one, and the native core
    runs. This does not put the accelerator into use."""
    clock = None if CORE.module is None else default_device_clock()
    return [] if clock is None else [DeviceMeter(clock)]
