"""The clock of an accelerator: time stamps that the device takes itself."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

import torch

from torchprof_hooks.measure.accelerator import Accelerator, current_accelerator

#: Counters of which one is not 0 if the program has put anything on a device.
#: Allocators without a cache reserve nothing.
_KEPT: Final = ("reserved", "allocated")

#: CU_STREAM_CAPTURE_MODE_RELAXED
_RELAXED: Final = 2


class EventClock:
    """Stamps as timing events on the current stream of ``torch.cuda``, or of another
    device with the same interface (see `Accelerator`).

    The clock takes no stamp before the program itself has initialised the device; on a
    device on which the program has nothing (an event would take some hundred megabytes
    of that device); while the stream is being captured into a graph, where recording a
    timing event is an error; and if the device's events tell no times. It uses events
    again as soon as nothing refers to their stamp any more.

    name: torch's name for the kind of device.
    """

    def __init__(self, device: Any = torch.cuda, name: str = "cuda") -> None:
        self.name = name
        self._device = device
        #: Whether the program has put devices of this kind into use.
        self.is_initialized: Callable[[], bool] = device.is_initialized
        #: Whether the current stream is being captured into a graph. It is the device's
        #: own function, without one around it, as each stamp calls it.
        self.is_capturing: Callable[[], bool] = device.is_current_stream_capturing
        # By index of the device: an event can be recorded only on its first device.
        self._pools: dict[int, list[Any]] = {}
        self._takes_times: bool | None = None  # None: not known yet

    def stamp(self) -> _EventStamp | None:
        """Queue a time stamp behind the work so far; None if none can be taken."""
        device = self._device
        if not self.is_initialized():
            return None
        stream = device.current_stream()
        pool = self._pools.get(stream.device_index)
        if pool is None:
            if not self.is_in_use(stream.device_index):
                return None
            pool = self._pools.setdefault(stream.device_index, [])
        if self.is_capturing():
            return None
        try:
            event = pool.pop()
        except IndexError:  # not tested before: another thread may take the last event
            event = device.Event(enable_timing=True)
        try:
            event.record(stream)
        except RuntimeError:  # the device has failed: the program's calls raise, too
            return None
        return _EventStamp(event, stream.device_index, pool)

    def waits(self) -> bool | None:
        """Whether the current stream has done all its work, so that its device, which
        must be in use, waits for the host. None if the device cannot tell, or if asking
        would end the capture of a graph."""
        if self.is_capturing():
            return None
        try:
            with _questions_allowed():
                return bool(self._device.current_stream().query())
        except (RuntimeError, NotImplementedError):
            return None

    def is_in_use(self, index: int) -> bool:
        """Whether the program has put anything on a device, as far as is known, and the
        device tells times. Devices of this kind must be initialised."""
        if not self._has_times():
            return False
        if self._device.get_allocator_backend() != "native":
            return True  # the allocator does not count, so this is not known
        stats = self._device.memory_stats_as_nested_dict(index)
        return any(stats[f"{of}_bytes"]["all"]["allocated"] for of in _KEPT)

    def _has_times(self) -> bool:
        """Whether the events of the device, which is in use, tell times."""
        if self._takes_times is None:
            asked = getattr(self._device, "takes_times", None)  # CUDA's always tell
            self._takes_times = asked is None or asked()
        return self._takes_times

    def is_done(self, stamp: _EventStamp) -> bool:
        """Whether the device has reached `stamp`. Does not wait."""
        try:
            with _questions_allowed():
                return bool(stamp.event.query())
        except RuntimeError:  # the device has failed since, and will never reach it
            return True

    def wait(self, stamp: _EventStamp) -> None:
        """Wait until the device has reached `stamp`."""
        with suppress(RuntimeError), _questions_allowed():  # as above
            stamp.event.synchronize()

    def elapsed_ns(self, start: _EventStamp, end: _EventStamp) -> int:
        """Nanoseconds between two stamps of a device that are done; 0 if that is not
        known. The device counts in steps of about 0.5 us.

        Below 0 if the device has reached `end` first: streams that do not wait for each
        other have no order.
        """
        try:
            with _questions_allowed():  # torch asks whether both are done
                milliseconds = float(start.event.elapsed_time(end.event))
        except RuntimeError:  # as above
            return 0
        return round(milliseconds * 1e6)


class _EventStamp:
    """Keeps an event while its time is needed, and then returns it to its pool.

    device: the index of its device.
    pool: the unused events of that.
    """

    __slots__ = ("device", "event", "pool")

    def __init__(self, event: Any, device: int, pool: list[Any]) -> None:
        self.event = event
        self.device = device
        self.pool = pool

    def __del__(self) -> None:
        self.pool.append(self.event)


@contextmanager
def _questions_allowed() -> Iterator[None]:
    """Let this thread query the device while a graph is captured: see
    `QuestionsAllowed` in core/native/meters/capture_mode.h."""
    exchange = _exchange_capture_mode()
    if exchange is None:
        yield
        return
    mode = ctypes.c_int(_RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


@cache
def _exchange_capture_mode() -> Any:
    """The function of CUDA's driver, if the process has loaded that; else None."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (OSError, AttributeError):  # no driver; a system that cannot tell
        return None
    return getattr(driver, "cuThreadExchangeStreamCaptureMode", None)


def default_device_clock() -> EventClock | None:
    """The clock of the accelerator that this torch is built for, or that has registered
    with it; None for the CPU alone. Does not initialise the device."""
    kind = current_accelerator()
    if kind is None:
        return None
    return EventClock() if kind == "cuda" else EventClock(Accelerator(kind), kind)
