"""The tip on attention that is computed function by function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import prod
from typing import Final

from torchprof_hooks.documents.build.tips.evidence import Evidence, modules_text
from torchprof_hooks.documents.build.tips.products import (
    Factors,
    Shape,
    factors,
)
from torchprof_hooks.documents.document import Tip
from torchprof_hooks.profiles.rows import Row

#: From this share of the time on, it is mentioned: a third or more of it can be saved.
LEAST_ATTENTION: Final = 0.05

_FUSED: Final = "scaled_dot_product_attention"
_BATCH_RANK: Final = 3
#: Products for each softmax: two, or somewhat less by the rounding of estimates.
_TWO_OF_EACH: Final = 1.5


def eager_attention(evidence: Evidence) -> Iterator[Tip]:
    """Modules that call matmul, softmax and matmul on the same matrices."""
    infos = evidence.profile.modules
    by_module: defaultdict[str, list[Row]] = defaultdict(list)
    for row in evidence.calls:
        name = row.module
        if name and infos[name].class_name == "Softmax":  # a module for one function
            name = name.rpartition(".")[0]
        by_module[name].append(row)
    by_module.pop("", None)
    found = {name: _attention(rows) for name, rows in by_module.items()}
    found = {name: rows for name, rows in found.items() if rows}
    share = evidence.share([row for rows in found.values() for row in rows])
    if share.fraction >= LEAST_ATTENTION:
        where = modules_text(list(found), [infos[name].class_name for name in found])
        yield Tip(
            f"Attention as matmul, softmax and matmul in {where} takes about {share}",
            f"torch.nn.functional.{_FUSED} does it in one function, faster, and where "
            "it can, without attention weights in memory.",
        )


def _attention(rows: Sequence[Row]) -> list[Row]:
    """The calls of one module that are attention; none if it has the fused one too."""
    if any(row.class_name == _FUSED for row in rows):
        return []
    products = [(row, found) for row in rows if (found := _batches(row))]
    calls: dict[str, Row] = {}
    for row in rows:
        shapes = row.shapes
        if row.class_name != "softmax" or not shapes:
            continue
        before = [p for p, found in products if _makes(p, found, shapes[0])]
        after = [p for p, found in products if _same_matrices(found.left, shapes[0])]
        both = {call.name: call.calls for call in (*before, *after)}
        if before and after and sum(both.values()) >= _TWO_OF_EACH * row.calls:
            calls.update((call.name, call) for call in (row, *before, *after))
    return list(calls.values())


def _batches(row: Row) -> Factors | None:
    """The factors of a product of batches of matrices; None for products with
    weights."""
    found = factors(row)
    if found is None or row.class_name == "linear":
        return None
    return found if min(map(len, found)) >= _BATCH_RANK else None


def _makes(row: Row, found: Factors, scores: Shape) -> bool:
    """Whether the result of a product has the shape of the `scores`."""
    left, right = found
    if row.class_name == "einsum":  # sizes in any order
        return not _same_matrices(left, scores) and {*scores} <= {*left, *right}
    return _same_matrices((*left[:-1], right[-1]), scores)


def _same_matrices(one: Shape, other: Shape) -> bool:
    """Whether shapes are equal but for how their batch dimensions are split."""
    return one[-2:] == other[-2:] and prod(one) == prod(other)
