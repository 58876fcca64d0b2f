"""Which tensors have the batch on two sides, by the shapes of functions: their memory
grows with the square of the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from typing import Final, TypeAlias

from torchprof_hooks.profiles.cells import enclosing_module
from torchprof_hooks.profiles.data import ProfileData

_Shape: TypeAlias = Sequence[int]

#: Products of matrices: a row of one with each column of the other.
_PRODUCTS: Final = ("matmul", "mm", "bmm", "__matmul__")
#: Functions of each row of one with each row of the other.
_PAIRS: Final = ("cdist",)


def batch_of(profile: ProfileData) -> int:
    """The batch size: the first size of what most functions in modules get; 0: not
    known."""
    found, infos = Counter[int](), profile.modules
    for path, phase in profile.cells:
        shapes = infos[path[-1]].shapes if path[-1] in infos else None
        is_inside = phase == "forward" and enclosing_module(path, infos)
        if is_inside and shapes and len(shapes[0]) > 1:
            found[shapes[0][0]] += profile.cells[path, phase].calls
    [(size, _)] = found.most_common(1) or [(0, 0)]
    return max(size, 0)


def has_batch_twice(profile: ProfileData, module: str) -> bool:
    """Whether a function that the module calls makes a tensor with the batch on two
    sides, of two that have it on one each."""
    batch, infos = batch_of(profile), profile.modules
    if batch < 2:
        return False
    for path, _ in profile.cells:
        info = infos.get(path[-1])
        if info and info.shapes and enclosing_module(path, infos) == module:
            shapes = [each for each in info.shapes if each]
            if any(
                _is_twice(info.class_name, one, other, batch)
                for one, other in permutations(shapes[:3], 2)
            ):
                return True
    return False


def _is_twice(function: str, one: _Shape, other: _Shape, batch: int) -> bool:
    if function in _PRODUCTS:
        return len(one) > 1 < len(other) and one[-2] == other[-1] == batch
    if function in _PAIRS:
        return len(one) > 1 < len(other) and one[-2] == other[-2] == batch
    rank = max(len(one), len(other))
    sides = [[1] * (rank - len(each)) + [*each] for each in (one, other)]
    pairs = [*zip(*sides, strict=True)]  # as they are broadcast
    return (batch, 1) in pairs and (1, batch) in pairs
