"""What is known of the inputs of a function call."""

from __future__ import annotations

from typing import Final, NamedTuple

from torchprof_hooks.profiles.rows import Row

Shape = tuple[int, ...]

#: Functions that multiply two of their inputs, -> which ones; the first of the two is
#: multiplied by rows.
_FACTORS: Final = {
    "addmm": (1, 2),
    "addbmm": (1, 2),
    "baddbmm": (1, 2),
    "bmm": (0, 1),
    "linear": (0, 1),
    "matmul": (0, 1),
    "mm": (0, 1),
    "einsum": (0, 1),
}
#: Products of another kind.
_OTHER_PRODUCTS: Final = frozenset(
    f"conv{kind}{dims}d" for kind in ("", "_transpose") for dims in "123"
) | {"bilinear", "chain_matmul", "dot", "inner", "linalg_multi_dot", "mv", "tensordot"}


def multiplies(row: Row) -> bool:
    """Whether a function is a product of matrices, or a convolution."""
    return row.class_name in _FACTORS or row.class_name in _OTHER_PRODUCTS


class Factors(NamedTuple):
    """The shapes of two matrices, or batches of these, that are multiplied."""

    left: Shape
    right: Shape


def factors(row: Row) -> Factors | None:
    """The two factors of a product of matrices; None for other functions, or if the
    shapes are not known."""
    where = _FACTORS.get(row.class_name)
    shapes = row.shapes or ()
    if where is None or len(shapes) <= max(where):
        return None
    left, right = (shapes[index] for index in where)
    return Factors(left, right) if len(left) > 1 < len(right) else None


def tensor_types(row: Row) -> frozenset[str]:
    """Data types of a call's inputs, and the type to which autocast converts single
    precision. Inputs without dimensions (of one element) are left out: they do not
    count for type promotion."""
    shapes = row.shapes or ()
    types = {
        kind.partition("@")[0]
        for index, kind in enumerate(row.inputs)
        if index >= len(shapes) or shapes[index]
    }
    if row.autocast and "float32" in types:
        types.update(row.autocast.split("|"))
    return frozenset(types)
