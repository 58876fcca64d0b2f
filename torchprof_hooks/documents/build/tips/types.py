"""Tips on data types and sizes of what functions are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torchprof_hooks.documents.build.tips.evidence import Evidence, has_backward
from torchprof_hooks.documents.build.tips.products import (
    factors,
    multiplies,
    tensor_types,
)
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.profiles.rows import Row

#: The least share of the time in double precision that is mentioned: half of it can be
#: saved.
LEAST_DOUBLE: Final = 0.02
#: The same for single precision without tensor cores: most of it can be saved.
LEAST_TF32: Final = 0.05
#: The same for products, of whose time only a part can be saved.
LEAST_PRODUCTS: Final = 0.05
#: Sizes should be a multiple of this: a tensor core reads eight numbers of two bytes at
#: once.
ALIGNMENT: Final = 8

_SIZES_SHOWN: Final = 3

_HALF: Final = frozenset({"bfloat16", "float16"})
_FLOATING: Final = _HALF | {"float32", "float64"}


def double_precision(evidence: Evidence) -> Iterator[Tip]:
    """Functions that work in float64."""
    rows = [row for row in evidence.calls if "float64" in tensor_types(row)]
    share = evidence.share(rows)
    if share.fraction >= LEAST_DOUBLE:
        yield Tip(
            f"Functions with float64 inputs take about {share}, {evidence.most(rows)}",
            "float32 takes half the memory and about half the time, on most GPUs far "
            "less. NumPy makes float64 by default.",
        )


def unused_tf32(evidence: Evidence) -> Iterator[Tip]:
    """Products in float32 that could be computed by tensor cores. If the program uses
    half precision, autocast may compute them in that already."""
    has_half = any(tensor_types(row) & _HALF for row in evidence.calls)
    if has_half or not evidence.program.facts.leaves_tf32_unused:
        return
    rows = [
        row
        for row in evidence.calls
        if factors(row) and set(row.inputs) == {"float32@cuda"}
    ]
    share = evidence.share(rows)
    if share.fraction >= LEAST_TF32:
        yield Tip(
            f"float32 matrix products take about {share}, {evidence.most(rows)}",
            "if 10 bits of precision will do for their inputs, "
            'torch.set_float32_matmul_precision("high") has tensor cores compute them.',
        )


def autocast_inference(evidence: Evidence) -> Iterator[Tip]:
    """Products whose inputs autocast converts again and again, though nothing is
    trained. Without autocast, products refuse inputs of different types; in training,
    converting them is its purpose."""
    rows = [
        row
        for row in evidence.calls
        if multiplies(row)
        and len(tensor_types(row) & _FLOATING) > 1
        and not has_backward(row)
    ]
    share = evidence.share(rows)
    if share.fraction >= LEAST_PRODUCTS:
        met = " and ".join(sorted(tensor_types(rows[0]) & _FLOATING))
        yield Tip(
            f"Autocast converts inputs ({met}) of products without a backward that "
            f"take about {share}, {evidence.most(rows)}",
            "for inference, convert the model once (model.to(torch.bfloat16), say).",
        )


def unaligned_sizes(evidence: Evidence) -> Iterator[Tip]:
    """Products in half precision of sizes that do not suit tensor cores."""
    rows = [row for row in evidence.calls if _is_half_on_cuda(row) and _unaligned(row)]
    share = evidence.share(rows)
    if share.fraction >= LEAST_PRODUCTS:
        sizes = sorted({_unaligned(row) for row in rows})
        shown = ", ".join(map(str, sizes[:_SIZES_SHOWN]))
        more = ", ..." if len(sizes) > _SIZES_SHOWN else ""
        yield Tip(
            f"Half-precision products of sizes that are no multiple of {ALIGNMENT} "
            f"({shown}{more}) take about {share}, {evidence.most(rows)}",
            f"tensor cores work best on multiples of {ALIGNMENT}, to which sizes can "
            "be padded.",
        )


def _is_half_on_cuda(row: Row) -> bool:
    """Whether a product is computed in half precision: if one input has it, autocast
    converts the others."""
    types = tensor_types(row)
    on_cuda = all(kind.endswith("@cuda") for kind in row.inputs)
    return on_cuda and bool(types & _HALF) and types <= _HALF | {"float32"}


def _unaligned(row: Row) -> int:
    """The first size of a product that is not aligned, 0 if all are. Only sizes along
    which matrices lie in memory matter: the one that is summed over, and the columns of
    the result. The number of rows does not."""
    found = factors(row)
    if found is None or row.class_name == "einsum":
        return 0
    columns = found.right[0] if row.class_name == "linear" else found.right[-1]
    sizes = (found.left[-1], columns)
    return next((size for size in sizes if size % ALIGNMENT), 0)
