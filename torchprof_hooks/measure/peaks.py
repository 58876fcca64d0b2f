"""What a device can do in a second, floating-point operations and bytes of memory read
and written: from the vendors' data sheets, and on the CPU by trying."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from time import perf_counter_ns
from typing import Final

import torch

from torchprof_hooks.profiles.operations.utilisation import Bandwidth, Peak


def _by_type(half: float, **others: float) -> Mapping[str, float]:
    """half: the TFLOP/s of bfloat16 and of float16."""
    return {"bfloat16": half, "float16": half, **others}


_H100: Final = _by_type(989.5, float64=67, float32=67, tf32=494.5)
_A100: Final = _by_type(312, float64=19.5, float32=19.5, tf32=156)

#: A pattern for torch's name of a device; GB/s, read and written taken together; and
#: TFLOP/s by type of numbers, dense. NVIDIA's names are matched to their end: parts of
#: a device (``... MIG 1g.5gb``, ``GRID A100-10C``) are not the device.
#:
#: Numbers are those of tensor (or matrix) cores, but for float32, which NVIDIA's tensor
#: cores do not have: "tf32" is for float32 products whose inputs torch may round.
#:
#: Sources, most of which give numbers with sparsity, twice as high (half of that is
#: here): NVIDIA H200, H100, A100 (40 GB and 80 GB), V100, A10, L4 and L40S Tensor
#: Core GPU data sheets, T4 data sheet and product brief; AMD Instinct MI300X data
#: sheet.
_DATA_SHEETS: Final[tuple[tuple[str, int, Mapping[str, float]], ...]] = (
    (r"\bH200$", 4800, _H100),
    (r"\bH100 80GB HBM3$", 3350, _H100),  # SXM
    (r"\bH100 PCIe$", 2000, _by_type(756.5, float64=51, float32=51, tf32=378)),
    (r"\bA100-SXM4-80GB$", 2039, _A100),
    (r"\bA100 80GB PCIe$", 1935, _A100),
    (r"\bA100-(SXM4|PCIE)-40GB$", 1555, _A100),
    (
        r"\bV100-SXM2-(16|32)GB$",
        900,
        {"float64": 7.8, "float32": 15.7, "float16": 125},
    ),
    (r"\bV100-PCIE-(16|32)GB$", 900, {"float64": 7, "float32": 14, "float16": 112}),
    (r"\bT4$", 320, {"float32": 8.1, "float16": 65}),
    (r"\bA10$", 600, _by_type(125, float32=31.2, tf32=62.5)),
    (r"\bL4$", 300, _by_type(121, float32=30.3, tf32=60)),
    (r"\bL40S$", 864, _by_type(362.05, float32=91.6, tf32=183)),
    (r"MI300X\b", 5300, _by_type(1307.4, float64=163.4, float32=163.4)),
)

#: Rows of the matrices whose product is tried. The next size comes only if the last one
#: was quick.
_SIZES: Final = (512, 1024, 2048)
_QUICK_NS: Final = 25_000_000
_PRODUCTS: Final = 5

#: Bytes of each tensor that is summed: at least `_LEAST`, and `_CACHES` times what the
#: largest cache holds, but at most `_MOST`.
_LEAST: Final = 64 << 20
_CACHES: Final = 2
_MOST: Final = 512 << 20
_SUMS: Final = 3
#: A sum in place reads both tensors, and writes one.
_MOVED: Final = 3

#: Where Linux tells of the caches of the first core.
_CACHE_SIZES: Final = Path("/sys/devices/system/cpu/cpu0/cache")


def data_sheet_peak(device_name: str, dtype: str) -> Peak | None:
    """What the vendor tells of a device, by the name that torch has for it.

    dtype: "tf32" for products of float32 numbers that may be rounded.
    """
    for pattern, _, peaks in _DATA_SHEETS:
        if re.search(pattern, device_name) and dtype in peaks:
            flops = round(peaks[dtype] * 1e12)
            return Peak(flops, f"{device_name}, {dtype}, dense, by its data sheet")
    return None


def data_sheet_bandwidth(device_name: str) -> Bandwidth | None:
    """What the vendor tells of a device's memory, by the name that torch has for it."""
    for pattern, gigabytes, _ in _DATA_SHEETS:
        if re.search(pattern, device_name):
            return Bandwidth(gigabytes * 10**9, f"{device_name}, by its data sheet")
    return None


def device_peak(dtype: str, device_type: str) -> Peak | None:
    """The peak of the current device of a type, None if it is not known without trying.
    Devices that the program does not use are not asked."""
    if dtype == "float32" and rounds_products():
        dtype = "tf32"
    name = _device_name(device_type)
    return None if name is None else data_sheet_peak(name, dtype)


def device_bandwidth(device_type: str) -> Bandwidth | None:
    """How fast that device's memory is, None if it is not known without trying."""
    name = _device_name(device_type)
    return None if name is None else data_sheet_bandwidth(name)


def _device_name(device_type: str) -> str | None:
    is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_device_name() if device_type == "cuda" and is_used else None


def rounds_products() -> bool:
    """Whether CUDA may round the inputs of products of float32 matrices."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # since torch 2.9, if its newer settings say something else
        return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"


@cache
def measured_peak(dtype: str) -> Peak | None:
    """What this machine's CPU does at its best: products of matrices, with as many
    threads as torch has now. It takes some tenths of a second, the first time. None if
    it failed."""
    best: list[tuple[float, int]] = []
    for size in _SIZES:
        shortest_ns = _product_ns(size, getattr(torch, dtype))
        if shortest_ns > 0:
            best.append((2 * size**3 / shortest_ns * 1e9, size))
        if not 0 < shortest_ns <= _QUICK_NS:
            break
    if not best:
        return None
    flops, size = max(best)
    source = f"CPU, {dtype}, measured: product of {size}x{size}, {_threads()}"
    return Peak(round(flops), source)


@cache
def measured_bandwidth() -> Bandwidth | None:
    """What this machine's memory does at its best: a sum in place of tensors that no
    cache holds, with as many threads as torch has now. A copy would do less: before a
    CPU writes to memory, it mostly reads what is there, which is counted nowhere. It
    takes a tenth of a second or two, the first time, most of it to get the memory of
    two such tensors, which is given back. None if it failed."""
    size = summed_bytes(largest_cache_bytes())
    shortest_ns = _sum_ns(size)
    if not shortest_ns:
        return None
    source = f"CPU, measured: sum in place of {size >> 20}MB, {_threads()}"
    return Bandwidth(round(_MOVED * size / shortest_ns * 1e9), source)


def _threads() -> str:
    number = torch.get_num_threads()
    return "1 thread" if number == 1 else f"{number} threads"


def summed_bytes(cache_bytes: int) -> int:
    """Bytes of each tensor to sum, if the largest cache holds `cache_bytes`."""
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


def _product_ns(size: int, dtype: torch.dtype) -> int:
    """Time of a product of matrices; 0 if the type has none, or there is no memory."""

    def make() -> Callable[[], object]:
        matrix = torch.full((size, size), 1 / size, dtype=dtype, device="cpu")
        product = torch.empty_like(matrix)
        return lambda: torch.mm(matrix, matrix, out=product)

    return _shortest_ns(make, _PRODUCTS)


def _sum_ns(size: int) -> int:
    """Time of a sum in place; 0 where there is no memory."""

    def make() -> Callable[[], object]:
        # Written to, so that the system has given the memory.
        count = size // torch.float32.itemsize
        source = torch.empty(count, dtype=torch.float32, device="cpu").fill_(1)
        target = torch.empty_like(source).fill_(1)
        return lambda: target.add_(source)

    return _shortest_ns(make, _SUMS)


def _shortest_ns(make: Callable[[], Callable[[], object]], count: int) -> int:
    """The shortest of `count` runs of what `make` returns; 0 if that fails."""
    tries = []
    try:
        with torch.no_grad():
            work = make()
            work()
            for _ in range(count):
                began_ns = perf_counter_ns()
                work()
                tries.append(perf_counter_ns() - began_ns)
    except RuntimeError:
        return 0
    return min(tries)
