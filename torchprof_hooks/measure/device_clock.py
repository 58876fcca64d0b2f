"""The clock of an accelerator: time stamps that the device takes itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from torchprof_hooks.measure.accelerator import Accelerator, current_accelerator

#: Counters of which one is not 0 if the program has put anything on a device.
#: Allocators without a cache reserve nothing.
_KEPT: Final = ("reserved", "allocated")


class EventClock:
    """What the native core asks of ``torch.cuda``, or of another device with the same
    interface (see `Accelerator`), before it puts timing events into its queue of work.

    It puts none there before the program itself has initialised the device; on a device
    on which the program has nothing (an event would take some hundred megabytes of that
    device); while the stream is being captured into a graph, where recording a timing
    event is an error; and if the device's events tell no times.

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


def default_device_clock() -> EventClock | None:
    """The clock of the accelerator that this torch is built for, or that has registered
    with it; None for the CPU alone. Does not initialise the device."""
    kind = current_accelerator()
    if kind is None:
        return None
    return EventClock() if kind == "cuda" else EventClock(Accelerator(kind), kind)
