"""Whether a rank has larger inputs than others: by the shapes that calls of functions
had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from statistics import median
from typing import NamedTuple

from torchprof_hooks.profiles.ranks.rank import Rank

#: A function, and how many dimensions its inputs have.
_Function = tuple[str, tuple[int, ...]]


class RankInputs(NamedTuple):
    """One input of the function that takes most of a rank's time in a module: the one
    whose size differs most from that at other ranks.

    function: its name.
    size: the input's mean shape at the rank.
    least, most: the smallest and the largest of its mean shapes at other ranks.
    calls, others_calls: calls in a step; those of the others are their median.
    larger: how many times as large as at others it is (their median).
    """

    function: str
    size: tuple[float, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]
    calls: float
    others_calls: float
    larger: float


@dataclass
class _Calls:
    """Calls of a function by one rank in a step; and each size of each input, summed up
    over them."""

    self_ns: float = 0.0
    calls: float = 0.0
    sizes: list[list[float]] = field(default_factory=list)

    def mean(self, number: int) -> tuple[float, ...]:
        return tuple(size / self.calls for size in self.sizes[number])


def inputs_in(
    module: str, ranks: Sequence[Rank], slow: int, others: Sequence[int]
) -> RankInputs | None:
    """What the rank `slow` and others call in a module, and in the modules inside of
    it; None if no shapes are known that they have in common.

    slow, others: positions in `ranks`.
    """
    own = _calls_in(module, ranks[slow])
    theirs = [_calls_in(module, ranks[n]) for n in others]
    shared = [each for each in own if theirs and all(each in t for t in theirs)]
    if not shared:
        return None
    function = max(shared, key=lambda each: own[each].self_ns)
    mine, every = own[function], [calls[function] for calls in theirs]

    def of_input(number: int) -> RankInputs:
        sizes = sorted((each.mean(number) for each in every), key=prod)
        return RankInputs(
            *(function[0], mine.mean(number), sizes[0], sizes[-1], mine.calls),
            median(each.calls for each in every),
            prod(mine.mean(number)) / max(median(map(prod, sizes)), 1),
        )

    return max(map(of_input, range(len(mine.sizes))), key=lambda each: each.larger)


def _calls_in(module: str, rank: Rank) -> dict[_Function, _Calls]:
    found: dict[_Function, _Calls] = {}
    for key, calls in rank.calls.items():
        path, _ = key
        info = rank.infos[path[-1]]
        shapes = info.shapes or ()
        if module not in path or any(size < 0 for shape in shapes for size in shape):
            continue
        each = found.setdefault((info.class_name, tuple(map(len, shapes))), _Calls())
        each.sizes = each.sizes or [[0.0] * len(shape) for shape in shapes]
        each.self_ns += rank.cells.get(key, 0) + rank.cells.get((path, "backward"), 0)
        each.calls += calls
        for sums, shape in zip(each.sizes, shapes, strict=True):
            sums[:] = [s + calls * size for s, size in zip(sums, shape, strict=True)]
    return found
