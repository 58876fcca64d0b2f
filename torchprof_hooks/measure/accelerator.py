"""Accelerators, through torch's generic interface where they are not CUDA; and the
clock of one: time stamps that the device takes itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch


class Accelerator:
    """A kind of device, with the same functions as ``torch.cuda``, so that clocks and
    counters work with either.

    It calls ``torch.accelerator`` and ``torch.Event``, which know every device that has
    registered with torch: Intel's XPU, Apple's MPS, and those of separate packages. It
    tries what a device can do, and never goes by its name.

    kind: the type of device, as in ``torch.device(kind)``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def is_initialized(self) -> bool:
        """Whether the program has initialised the device. Does not do so itself."""
        asked = getattr(self._module(), "is_initialized", None)
        return bool(asked()) if callable(asked) else self._has_memory_in_use()

    def current_stream(self) -> torch.Stream:
        """The stream to which the running thread adds its work."""
        return torch.accelerator.current_stream()

    def is_current_stream_capturing(self) -> bool:
        """Whether the current stream is being captured into a graph; False where the
        device has no graphs."""
        asked = getattr(self._module(), "is_current_stream_capturing", None)
        return bool(asked()) if callable(asked) else False

    def Event(self, *, enable_timing: bool) -> torch.Event:  # noqa: N802
        """A new event, which takes the time when the device reaches it."""
        return torch.Event(self.kind, enable_timing=enable_timing)

    def takes_times(self) -> bool:
        """Whether events have the times at which the device reached them. The device
        must be in use; this does not wait for it."""
        begin, end = (self.Event(enable_timing=True) for _ in range(2))
        try:
            begin.record(self.current_stream())
            end.record(self.current_stream())
            if end.query():
                end.synchronize()
                begin.elapsed_time(end)
        except (RuntimeError, NotImplementedError):
            return False
        return True

    def current_device(self) -> int:
        """The index of the running thread's device."""
        return torch.accelerator.current_device_index()

    def device_count(self) -> int:
        """How many devices of this kind there are."""
        return torch.accelerator.device_count()

    def get_allocator_backend(self) -> str:
        """``"native"`` if torch can ask the allocator (since 2.9), and it counts what
        it hands out; else "". Whether it counts shows only when the device is in use:
        before that, it is taken to count."""
        if not hasattr(torch.accelerator, "memory_stats"):
            return ""
        counts = not self.is_initialized() or self.memory_stats_as_nested_dict()
        return "native" if counts else ""

    def memory_stats_as_nested_dict(self, index: int | None = None) -> dict[str, Any]:
        """The allocator's counters of a device; empty if it does not count."""
        try:
            flat = torch.accelerator.memory_stats(*([] if index is None else [index]))
        except (AttributeError, RuntimeError):  # an older torch; another allocator
            return {}
        nested: dict[str, Any] = {}
        for name, value in flat.items():
            inner = nested
            *above, last = name.split(".")
            for part in above:
                inner = inner.setdefault(part, {})
            inner[last] = value
        return nested

    def _module(self) -> Any:
        return getattr(torch, self.kind, None)

    def _has_memory_in_use(self) -> bool:
        asked = getattr(self._module(), "current_allocated_memory", None)
        return bool(asked()) if callable(asked) else True


def current_accelerator() -> str | None:
    """The kind of accelerator that has registered with torch or that torch is built
    for, None for the CPU alone. Does not initialise it."""
    found = torch.accelerator.current_accelerator()
    if found is not None:
        return found.type
    return "cuda" if torch.backends.cuda.is_built() else None  # type: ignore[no-untyped-call]


def functions_of(kind: str) -> Any:
    """``torch.cuda``, or for another kind of device, what has the same functions."""
    return torch.cuda if kind == "cuda" else Accelerator(kind)


def accelerator_in_use() -> torch.device | None:
    """The running thread's device, if the program has initialised it. Does not do so
    itself."""
    kind = current_accelerator()
    if kind is None or not functions_of(kind).is_initialized():
        return None
    return torch.device(kind, functions_of(kind).current_device())


def wait_for_accelerator() -> None:
    """Wait until the current device has done all its work, if it is in use."""
    if accelerator_in_use() is not None:
        torch.accelerator.synchronize()


#: Counters of which one is not 0 if the program has put anything on a device.
#: Allocators without a cache reserve nothing.
_KEPT: Final = ("reserved", "allocated")


class EventClock:
    """What the native core asks of ``torch.cuda``, or of another device with the same
    interface (see `Accelerator`), before it puts timing events into its queue of work.

    It puts none there before the program itself has initialised the device; on a device
    on which the program has nothing (an event would take some hundred megabytes of that
    device); while the stream is being captured into a graph, where recording a timing
    event is an error; and if the device's events have no times.

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
        #: How many devices of the kind there are.
        self.device_count: Callable[[], int] = device.device_count
        self._takes_times: bool | None = None  # None: not known yet

    def is_in_use(self, index: int) -> bool:
        """Whether the program has put anything on a device, as far as is known, and the
        device has times. Devices of this kind must be initialised."""
        if not self._has_times():
            return False
        if self._device.get_allocator_backend() != "native":
            return True  # the allocator does not count, so this is not known
        stats = self._device.memory_stats_as_nested_dict(index)
        return any(stats[f"{of}_bytes"]["all"]["allocated"] for of in _KEPT)

    def _has_times(self) -> bool:
        """Whether the events of the device, which is in use, have times."""
        if self._takes_times is None:
            asked = getattr(self._device, "takes_times", None)  # CUDA's always have
            self._takes_times = asked is None or asked()
        return self._takes_times


def default_device_clock() -> EventClock | None:
    """The clock of the accelerator that this torch is built for, or that has registered
    with it; None for the CPU alone. Does not initialise the device."""
    kind = current_accelerator()
    return None if kind is None else EventClock(functions_of(kind), kind)
