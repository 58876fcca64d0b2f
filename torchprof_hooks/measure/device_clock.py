"""The clock of an accelerator: time stamps that the device takes itself."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class DeviceClock(Protocol):
    """Takes stamps in the device's queue of work, and reads them later."""

    name: str

    def stamp(self) -> Any:
        """Put a time stamp behind the work queued so far; None if none can be taken."""

    def is_done(self, stamp: Any) -> bool:
        """Whether the device has come to `stamp`. Does not wait."""

    def wait(self, stamp: Any) -> None:
        """Return when the device has come to `stamp`."""

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Nanoseconds between two stamps that are done."""


class EventClock:
    """Stamps as timing events on the current stream of ``torch.cuda``.

    No stamp is taken before the program itself has initialised the device, nor while
    the stream is being captured into a graph, where recording a timing event is an
    error. Events are used again as soon as nothing refers to their stamp any more.
    """

    def __init__(self, device: Any = torch.cuda, name: str = "cuda") -> None:
        self.name = name
        self._device = device
        self._pool: list[Any] = []

    def stamp(self) -> _EventStamp | None:
        """See `DeviceClock.stamp`."""
        device = self._device
        if not device.is_initialized() or device.is_current_stream_capturing():
            return None
        event = self._pool.pop() if self._pool else device.Event(enable_timing=True)
        event.record()
        return _EventStamp(event, self._pool)

    def is_done(self, stamp: _EventStamp) -> bool:
        """See `DeviceClock.is_done`."""
        return bool(stamp.event.query())

    def wait(self, stamp: _EventStamp) -> None:
        """See `DeviceClock.wait`."""
        stamp.event.synchronize()

    def elapsed_ns(self, start: _EventStamp, end: _EventStamp) -> int:
        """See `DeviceClock.elapsed_ns`. The device counts in steps of about 0.5 us."""
        milliseconds = float(start.event.elapsed_time(end.event))
        return round(milliseconds * 1e6)


class _EventStamp:
    """Holds an event for as long as somebody needs its time."""

    __slots__ = ("_pool", "event")

    def __init__(self, event: Any, pool: list[Any]) -> None:
        self.event = event
        self._pool = pool

    def __del__(self) -> None:
        self._pool.append(self.event)


def default_device_clock() -> DeviceClock | None:
    """The clock of the device that this torch is built for, None for the CPU alone.
    Does not initialise the device."""
    is_built = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
    return EventClock() if is_built else None
