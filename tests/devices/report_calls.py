"""Where a library has the addresses of the functions by which allocators report."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch

#: `c10::reportMemoryUsageToProfiler` and `c10::reportOutOfMemoryToProfiler`.
_NAMES = (
    "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE",
    "_ZN3c1027reportOutOfMemoryToProfilerElmmNS_6DeviceE",
)
_WORD = 8


def mappings(library: str) -> list[str]:
    """What is mapped of it, and which of that may be written."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if line.endswith(f"/{library}")]


def report_calls(library: str) -> dict[int, int]:
    """The functions that it calls, by the place of their address."""
    c10 = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    functions: list[Any] = [getattr(c10, name) for name in _NAMES]
    theirs = {ctypes.cast(each, ctypes.c_void_p).value for each in functions}
    found: dict[int, int] = {}
    for line in mappings(library):
        span, access, *_ = line.split()
        if access.startswith("r-x"):
            continue
        begin, end = (int(address, 16) for address in span.split("-"))
        words = (ctypes.c_uint64 * ((end - begin) // _WORD)).from_address(begin)
        found |= {
            begin + n * _WORD: word for n, word in enumerate(words) if word in theirs
        }
    return found


def are_redirected(calls: dict[int, int]) -> bool:
    """Whether all these calls go elsewhere now."""
    return all(
        ctypes.c_uint64.from_address(place).value != function
        for place, function in calls.items()
    )
