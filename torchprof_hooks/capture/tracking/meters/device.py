"""How long calls keep an accelerator busy, by stamps in its queue of work."""

from __future__ import annotations

from typing import Any, NamedTuple

from torchprof_hooks.capture.core import CORE, Cursor
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
    """Stamps a device's queue of work where calls begin and end: the core does, once
    the program uses the device (see `DeviceMeter` in core/reference_meters.py).

    device_ns, marked_ns: time by code of the site, as of the last `settle`: of all
        spans, and of those that had ended when `mark` was called.
    """

    def __init__(self, clock: EventClock) -> None:
        self.name = clock.name
        self.device_ns: dict[int, int] = {}
        self.marked_ns: dict[int, int] = {}
        self._core = _meter_of_core(clock)

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
        """Do nothing where measuring begins."""

    def mark(self) -> None:
        """Have `marked_ns` be the time of the spans that have ended so far. It is
        complete when the device has passed them all."""
        self._core.mark()

    def settle(self) -> None:
        """Wait for the device and book everything. For reports, not for steps."""
        if self._core.settle():
            self.device_ns = dict(enumerate(self._core.device_ns.tolist()))
            self.marked_ns = dict(enumerate(self._core.marked_ns.tolist()))


def device_meters() -> list[DeviceMeter]:
    """A meter for the accelerator of this machine, if there is one. This does not put
    the accelerator into use."""
    clock = default_device_clock()
    return [] if clock is None else [DeviceMeter(clock)]


def _meter_of_core(clock: EventClock) -> Any:
    if CORE.module is None:
        from torchprof_hooks.capture.core import reference_meters

        return reference_meters.DeviceMeter(clock)
    return CORE.module.DeviceMeter(
        clock.name, clock.is_initialized, clock.is_in_use, clock.is_capturing
    )
