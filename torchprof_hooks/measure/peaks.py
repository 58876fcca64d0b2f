"""How many floating-point operations per second a device can do, by the vendors' data
sheets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import torch

from torchprof_hooks.profiles.peak import Peak


def _by_type(half: float, **others: float) -> Mapping[str, float]:
    """TFLOP/s by type. half: those of bfloat16 and of float16."""
    return {"bfloat16": half, "float16": half, **others}


_H100: Final = _by_type(989.5, float64=67, float32=67, tf32=494.5)
_A100: Final = _by_type(312, float64=19.5, float32=19.5, tf32=156)

#: A pattern for torch's name of a device, and TFLOP/s by type of numbers, dense.
#: Patterns match NVIDIA's names to their end: a part of a device (``... MIG 1g.5gb``,
#: ``GRID A100-10C``) has fewer.
#:
#: Numbers are those of tensor (or matrix) cores, but for float32, which NVIDIA's tensor
#: cores do not have: "tf32" is for float32 products whose inputs torch may round.
#:
#: Sources, most of which give numbers with sparsity, twice those here: NVIDIA H200,
#: H100, A100 (40 GB and 80 GB), V100, A10, L4 and L40S Tensor Core GPU data sheets, T4
#: data sheet and product brief; AMD Instinct MI300X data sheet.
_DATA_SHEETS: Final[tuple[tuple[str, Mapping[str, float]], ...]] = (
    (r"\bH200$", _H100),
    (r"\bH100 80GB HBM3$", _H100),  # SXM
    (r"\bH100 PCIe$", _by_type(756.5, float64=51, float32=51, tf32=378)),
    (r"\bA100-SXM4-80GB$", _A100),
    (r"\bA100 80GB PCIe$", _A100),
    (r"\bA100-(SXM4|PCIE)-40GB$", _A100),
    (
        r"\bV100-SXM2-(16|32)GB$",
        {"float64": 7.8, "float32": 15.7, "float16": 125},
    ),
    (r"\bV100-PCIE-(16|32)GB$", {"float64": 7, "float32": 14, "float16": 112}),
    (r"\bT4$", {"float32": 8.1, "float16": 65}),
    (r"\bA10$", _by_type(125, float32=31.2, tf32=62.5)),
    (r"\bL4$", _by_type(121, float32=30.3, tf32=60)),
    (r"\bL40S$", _by_type(362.05, float32=91.6, tf32=183)),
    (r"MI300X\b", _by_type(1307.4, float64=163.4, float32=163.4)),
)


def data_sheet_peak(device_name: str, dtype: str) -> Peak | None:
    """The peak by the vendor's data sheet of a device with this name in torch; None if
    there is no sheet, or it does not have the type.

    dtype: "tf32" for products of float32 numbers that may be rounded.
    """
    for pattern, peaks in _DATA_SHEETS:
        if re.search(pattern, device_name) and dtype in peaks:
            flops = round(peaks[dtype] * 1e12)
            return Peak(flops, f"{device_name}, {dtype}, dense, by its data sheet")
    return None


def device_peak(dtype: str, device_type: str) -> Peak | None:
    """The peak of the current device of this type by its data sheet; None if there is
    none, or the program does not use the device, which would initialise it."""
    if dtype == "float32" and rounds_products():
        dtype = "tf32"
    name = _device_name(device_type)
    return None if name is None else data_sheet_peak(name, dtype)


def _device_name(device_type: str) -> str | None:
    is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.cuda.get_device_name() if device_type == "cuda" and is_used else None


def rounds_products() -> bool:
    """Whether CUDA may round the inputs of products of float32 matrices."""
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # since torch 2.9, if its newer settings say something else
        return str(torch.backends.cuda.matmul.fp32_precision) == "tf32"
