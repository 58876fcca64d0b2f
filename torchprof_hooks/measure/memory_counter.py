"""Counters of memory: the bytes that an allocator handed out, read at any moment."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Callable
from typing import Any, Final, Protocol

import torch

from torchprof_hooks.measure.accelerator import Accelerator, current_accelerator
from torchprof_hooks.measure.allocator_counter import AllocatorCounter
from torchprof_hooks.profiles.errors import MemoryUnavailableError

#: used, acquired, current, peak: all in bytes.
Reading = tuple[int, int, int, int]


class MemoryCounter(Protocol):
    """Reads what the allocator of one device has handed out so far.

    The difference of two readings is what happened between them, on all threads.
    """

    #: Whether used bytes fall when memory is freed. If not, they only ever rise.
    is_net: bool

    @property
    def name(self) -> str:
        """The device: "cpu", "cuda:0"."""

    def read(self) -> Reading:
        """Used bytes (handed out), acquired (taken from the device or the system),
        current (in use now) and peak (the most that was in use)."""


class _MallInfo2(ctypes.Structure):
    """``struct mallinfo2`` of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",  # taken from the system, by all threads' heaps
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",  # taken from the system for single large blocks (mmap)
            "usmblks",
            "fsmblks",
            "uordblks",  # handed out from the heaps
            "fordblks",
            "keepcost",
        )
    )


#: More than 32 MiB: when glibc frees a mapped block up to that size, it moves its
#: threshold for mapping blocks, so that the probe would change how the program runs.
#: Nobody writes to the block, so that no memory is really taken.
_PROBE_BYTES: Final = 40 * 2**20

#: Another thread may allocate or free as much during a probe, though hardly always.
_PROBE_TRIES: Final = 10


class CpuMemoryCounter:
    """The C allocator's counters in this process: glibc's ``mallinfo2``.

    All of them are net: glibc keeps no sum of what it handed out and got back. Small
    blocks that a thread has freed and keeps for itself (tcache) count as in use, and
    Python's small objects are not seen: Python maps the memory for them by itself.

    A reading takes about half a microsecond, and some nanoseconds more for each free
    block in the heaps: microseconds in usual training, milliseconds in a process that
    freed many thousands of scattered small blocks.

    Raises:
        MemoryUnavailableError: there is no ``mallinfo2``, or torch does not allocate
            with glibc's malloc.
    """

    name = "cpu"
    is_net = True

    def __init__(self, mallinfo2: Callable[[], Any] | None = None) -> None:
        self._mallinfo2 = mallinfo2 or _load_mallinfo2()
        if not any(self._follows_torch() for _ in range(_PROBE_TRIES)):
            raise MemoryUnavailableError(
                "the CPU's memory cannot be measured: glibc's mallinfo2 does not see "
                "what torch allocates, because another malloc is in use (LD_PRELOAD is "
                f"{os.environ.get('LD_PRELOAD', '')!r}). Run the program without it"
            )

    def read(self) -> Reading:
        """See `MemoryCounter.read`. The peak is the current use: glibc keeps none."""
        info = self._mallinfo2()
        mapped = info.hblkhd
        current = info.uordblks + mapped
        return current, info.arena + mapped, current, current

    def _follows_torch(self) -> bool:
        """Whether the counter rises and falls with a block that torch allocates."""
        _, _, before, _ = self.read()
        # A bare storage: no mode sees it being made, and nothing fills it.
        block = torch.UntypedStorage(_PROBE_BYTES, device="cpu")  # type: ignore[no-untyped-call]
        _, _, between, _ = self.read()
        del block
        _, _, after, _ = self.read()
        return all(
            abs(change - _PROBE_BYTES) < _PROBE_BYTES // 4
            for change in (between - before, between - after)
        )


def _load_mallinfo2() -> Callable[[], Any]:
    try:
        # PyDLL keeps the interpreter lock: giving it away would cost more than the
        # call, and getting it back may take a switch of threads.
        mallinfo2 = ctypes.PyDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError) as error:  # TypeError: Windows
        raise MemoryUnavailableError(
            "the CPU's memory cannot be measured: mallinfo2 is missing, which is part "
            f"of glibc since version 2.33, and this is {_libc_name()}. Run on Linux "
            "with a newer glibc, or measure a CUDA device"
        ) from error
    mallinfo2.restype = _MallInfo2
    mallinfo2.argtypes = ()
    return mallinfo2


def _libc_name() -> str:
    """``glibc 2.31``, or the system that has none."""
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, OSError, ValueError):
        version = None
    return version or f"{platform.system()} without glibc"


def memory_counter(
    device: str | torch.device | None = None,
    option: str = "device",
    of_cpu: Callable[[], MemoryCounter] = CpuMemoryCounter,
) -> MemoryCounter:
    """The counter of a device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``, or another kind
    of accelerator.

    option: what the user calls the device, for errors.
    of_cpu: makes the counter of the CPU.

    Without a device, the accelerator's current one is measured if the program has
    initialised that, else the CPU. This does not initialise it.

    Raises:
        TypeError, ValueError: not a device, or not one whose memory can be measured.
        MemoryUnavailableError: it cannot be measured in this process.
    """
    if device is None:
        in_use = _device_in_use()
        return of_cpu() if in_use is None else _counter_of(in_use)
    place = _parse(device, option)
    if place.type == "cpu":
        return of_cpu()
    if place.type != current_accelerator():
        raise MemoryUnavailableError(
            f"the memory of {place} cannot be measured: this torch is built without "
            f"{place.type.upper()}. Measure the CPU, or install a torch with "
            f"{place.type.upper()}"
        )
    try:
        return _counter_of(place)
    except ValueError as error:
        raise ValueError(
            f"{option} must be one of this machine's, not {device!r}: {error}"
        ) from None


def _counter_of(place: torch.device) -> AllocatorCounter:
    if place.type == "cuda":
        return AllocatorCounter(place.index)
    return AllocatorCounter(place.index, Accelerator(place.type), place.type)


def _device_in_use() -> torch.device | None:
    """The accelerator's current device, if the program has initialised it."""
    kind = current_accelerator()
    if kind is None:
        return None
    device = torch.cuda if kind == "cuda" else Accelerator(kind)
    if not device.is_initialized():
        return None
    return torch.device(kind, device.current_device())


def _parse(device: str | torch.device, option: str) -> torch.device:
    kinds = sorted({"cuda", current_accelerator() or "cuda"})
    names = " or ".join(f"{kind!r} or '{kind}:N'" for kind in kinds)
    problem = f"{option} must be 'cpu', {names}, not {device!r}"
    if not isinstance(device, (str, torch.device)):
        raise TypeError(problem)
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ValueError(problem) from error
    if place.type not in ("cpu", *kinds):
        raise ValueError(f"{problem}: of that, memory cannot be measured")
    return place
