"""How many bytes a device's memory reads and writes in a second: from the vendors' data
sheets, and on the CPU by trying."""

from __future__ import annotations

import re
import threading
from functools import cache
from pathlib import Path
from time import perf_counter_ns
from typing import Final

import torch

from torchprof_hooks.profiles.operations.utilisation import Bandwidth

#: What is in the name that torch tells of a device (see `peaks`); GB/s, read and
#: written taken together.
#:
#: Sources: NVIDIA H200, H100, A100 (40 GB and 80 GB), V100, A10, L4 and L40S Tensor
#: Core GPU data sheets, T4 product brief; AMD Instinct MI300X data sheet.
_BANDWIDTHS: Final = (
    (r"\bH200$", 4800),
    (r"\bH100 80GB HBM3$", 3350),  # SXM
    (r"\bH100 PCIe$", 2000),
    (r"\bA100-SXM4-80GB$", 2039),
    (r"\bA100 80GB PCIe$", 1935),
    (r"\bA100-(SXM4|PCIE)-40GB$", 1555),
    (r"\bV100-(SXM2|PCIE)-(16|32)GB$", 900),
    (r"\bT4$", 320),
    (r"\bA10$", 600),
    (r"\bL4$", 300),
    (r"\bL40S$", 864),
    (r"MI300X\b", 5300),
)

#: Bytes of what is summed up: at least so many, and so many times what the caches hold,
#: but not more than the most.
_LEAST: Final = 64 << 20
_CACHES: Final = 2
_MOST: Final = 512 << 20
_TRIES: Final = 3
#: A sum in place reads both, and writes one.
_MOVED: Final = 3

#: Where Linux tells of the caches of the first core.
_CACHE_SIZES: Final = Path("/sys/devices/system/cpu/cpu0/cache")


def data_sheet_bandwidth(device_name: str) -> Bandwidth | None:
    """What the vendor tells of a device, by the name that torch has for it."""
    for pattern, gigabytes in _BANDWIDTHS:
        if re.search(pattern, device_name):
            return Bandwidth(gigabytes * 10**9, f"{device_name}, by its data sheet")
    return None


def device_bandwidth(device_type: str) -> Bandwidth | None:
    """That of the current device of a type, None if it is not known without trying.
    Devices that the program does not use are not asked."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if device_type != "cuda" or not is_used:
        return None
    return data_sheet_bandwidth(torch.cuda.get_device_name())


@cache
def measured_bandwidth() -> Bandwidth | None:
    """What this machine's memory does at its best: a sum in place of tensors that no
    cache holds, with as many threads as torch has now. A copy would do less: before a
    CPU writes to memory, it mostly reads what is there, which is counted nowhere. It
    takes a tenth of a second or two, the first time, most of it to get the memory of
    two such tensors, which is given back. None if it failed."""
    size = summed_bytes(largest_cache_bytes())
    shortest: list[int] = []
    # Neither trackers nor modes of other threads look there (see `FlopCount`).
    thread = threading.Thread(target=lambda: shortest.append(_sum_ns(size)))
    try:
        thread.start()
    except RuntimeError:  # since Python 3.12 there are none at the program's exit
        return None
    thread.join()
    if not any(shortest):
        return None
    threads = torch.get_num_threads()
    source = f"CPU, measured: sum in place of {size >> 20}MB, {threads} threads"
    per_second = round(_MOVED * size / shortest[0] * 1e9)
    return Bandwidth(per_second, source.replace(" 1 threads", " 1 thread"))


def summed_bytes(cache_bytes: int) -> int:
    """How much is to be summed up where the largest cache holds so much."""
    return min(max(_LEAST, _CACHES * cache_bytes), _MOST)


def largest_cache_bytes() -> int:
    """What the largest cache of the CPU holds; 0 where the system does not tell."""
    sizes = [0]
    try:
        for path in _CACHE_SIZES.glob("index*/size"):
            found = re.fullmatch(r"(\d+)([KM])", path.read_text().strip())
            if found:
                sizes.append(int(found[1]) << {"K": 10, "M": 20}[found[2]])
    except OSError:
        pass
    return max(sizes)


def _sum_ns(size: int) -> int:
    """The shortest of some tries; 0 where the time could not be told."""
    tries = []
    try:
        with torch.no_grad():
            # Written to, so that the system has given the memory.
            count = size // torch.float32.itemsize
            source = torch.empty(count, dtype=torch.float32, device="cpu").fill_(1)
            target = torch.empty_like(source).fill_(1)
            target.add_(source)
            for _ in range(_TRIES):
                began_ns = perf_counter_ns()
                target.add_(source)
                tries.append(perf_counter_ns() - began_ns)
    except RuntimeError:  # there is no memory
        return 0
    return min(tries)
