"""Accelerators other than CUDA, through torch's generic interface."""

from __future__ import annotations

from typing import Any

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
        """Whether events tell when the device reached them. The device must be in use;
        this does not wait for it."""
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


def is_accelerator_in_use() -> bool:
    """Whether the program has initialised the device. Does not do so itself."""
    kind = current_accelerator()
    return kind is not None and Accelerator(kind).is_initialized()


def wait_for_accelerator() -> None:
    """Wait until the current device has done all its work, if it is in use."""
    if is_accelerator_in_use():
        torch.accelerator.synchronize()
