"""How many floating-point operations a device can do in a second: from the vendors'
data sheets, and on the CPU by trying."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from functools import cache
from time import perf_counter_ns
from typing import Final

import torch

from torchprof_hooks.profiles.operations.utilisation import Peak

#: What is in the name that torch tells of a device; TFLOP/s by type of numbers, dense.
#: NVIDIA's names are matched to their end: parts of a device (``... MIG 1g.5gb``,
#: ``GRID A100-10C``) are not the device.
#:
#: Tensor (or matrix) cores, but for float32 on NVIDIA's, which do not have that: there
#: "tf32" is what products take if torch may round their inputs.
#:
#: Sources, which tell most numbers with sparsity, twice as high (half is given here):
#: NVIDIA H200, H100, A100, V100, T4, A10, L4 and L40S Tensor Core GPU data sheets; AMD
#: Instinct MI300X data sheet.
_PEAKS: Final[tuple[tuple[str, Mapping[str, float]], ...]] = (
    (
        r"\bH200$",
        {"float64": 67, "float32": 67, "tf32": 494.5}
        | dict.fromkeys(("bfloat16", "float16"), 989.5),
    ),
    (
        r"\bH100 80GB HBM3$",  # SXM
        {"float64": 67, "float32": 67, "tf32": 494.5}
        | dict.fromkeys(("bfloat16", "float16"), 989.5),
    ),
    (
        r"\bH100 PCIe$",
        {"float64": 51, "float32": 51, "tf32": 378}
        | dict.fromkeys(("bfloat16", "float16"), 756.5),
    ),
    (
        r"\bA100(-SXM4-[48]0GB|-PCIE-40GB| 80GB PCIe)$",
        {"float64": 19.5, "float32": 19.5, "tf32": 156}
        | dict.fromkeys(("bfloat16", "float16"), 312),
    ),
    (r"\bV100-SXM2-(16|32)GB$", {"float64": 7.8, "float32": 15.7, "float16": 125}),
    (r"\bV100-PCIE-(16|32)GB$", {"float64": 7, "float32": 14, "float16": 112}),
    (r"\bT4$", {"float32": 8.1, "float16": 65}),
    (
        r"\bA10$",
        {"float32": 31.2, "tf32": 62.5} | dict.fromkeys(("bfloat16", "float16"), 125),
    ),
    (
        r"\bL4$",
        {"float32": 30.3, "tf32": 60} | dict.fromkeys(("bfloat16", "float16"), 121),
    ),
    (
        r"\bL40S$",
        {"float32": 91.6, "tf32": 183} | dict.fromkeys(("bfloat16", "float16"), 362.05),
    ),
    (
        r"MI300X\b",
        {"float64": 163.4, "float32": 163.4}
        | dict.fromkeys(("bfloat16", "float16"), 1307.4),
    ),
)

#: Rows of the matrices whose product is tried, and how often each. The next size comes
#: only if the last one was quick.
_SIZES: Final = (512, 1024, 2048)
_TRIES: Final = 5
_QUICK_NS: Final = 25_000_000


def data_sheet_peak(device_name: str, dtype: str) -> Peak | None:
    """What the vendor tells of a device, by the name that torch has for it.

    dtype: "tf32" for products of float32 numbers that may be rounded.
    """
    for pattern, peaks in _PEAKS:
        if re.search(pattern, device_name) and dtype in peaks:
            flops = round(peaks[dtype] * 1e12)
            return Peak(flops, f"{device_name}, {dtype}, dense, by its data sheet")
    return None


def device_peak(dtype: str, device_type: str) -> Peak | None:
    """That of the current device of a type, None if it is not known without trying.
    Devices that the program does not use are not asked."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if device_type != "cuda" or not is_used:
        return None
    if dtype == "float32" and rounds_products():
        dtype = "tf32"
    return data_sheet_peak(torch.cuda.get_device_name(), dtype)


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

    def run() -> None:
        for size in _SIZES:
            shortest_ns = _product_ns(size, getattr(torch, dtype))
            if shortest_ns > 0:
                best.append((2 * size**3 / shortest_ns * 1e9, size))
            if not 0 < shortest_ns <= _QUICK_NS:
                return

    # Neither trackers nor modes of other threads look there (see `FlopCount`).
    thread = threading.Thread(target=run)
    try:
        thread.start()
    except RuntimeError:  # since Python 3.12 there are none at the program's exit
        return None
    thread.join()
    if not best:
        return None
    flops, size = max(best)
    threads = torch.get_num_threads()
    source = f"CPU, {dtype}, measured: product of {size}x{size}, {threads} threads"
    return Peak(round(flops), source.replace(" 1 threads", " 1 thread"))


def _product_ns(size: int, dtype: torch.dtype) -> int:
    """The shortest of some tries; 0 where the time could not be told."""
    tries = []
    try:
        with torch.no_grad():
            matrix = torch.full((size, size), 1 / size, dtype=dtype, device="cpu")
            product = torch.empty_like(matrix)
            torch.mm(matrix, matrix, out=product)
            for _ in range(_TRIES):
                began_ns = perf_counter_ns()
                torch.mm(matrix, matrix, out=product)
                tries.append(perf_counter_ns() - began_ns)
    except RuntimeError:  # this type has no products there, or there is no memory
        return 0
    return min(tries)
