"""Which ranks do the same work, and so can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from torchprof_hooks.profiles.ranks.rank import Rank

#: Names for the dimension of a mesh along which the stages of a pipeline lie.
_PIPELINES: Final = frozenset(["pp", "pipe", "pipeline", "pipeline_parallel", "stage"])
#: Ranks that have less than this share of their modules in common do different work.
_MOST: Final = 0.5


def peers(ranks: Sequence[Rank]) -> tuple[tuple[int, ...], ...]:
    """Groups of ranks that do the same work, as indices into `ranks`. Without a device
    mesh, all ranks are one group.

    Along some dimensions of a mesh, ranks do different work, such as the stages of a
    pipeline. Ranks with the same places in these dimensions are peers. If no rank has a
    peer, all ranks are one group.
    """
    apart = _dimensions_apart(ranks)
    groups: dict[tuple[int, ...], list[int]] = {}
    for place, rank in enumerate(ranks):
        where = coordinates(rank)
        key = tuple(where[dimension] for dimension in apart)
        groups.setdefault(key, []).append(place)
    if all(len(group) == 1 for group in groups.values()):
        return (tuple(range(len(ranks))),)
    return tuple(tuple(groups[key]) for key in sorted(groups))


def coordinates(rank: Rank) -> dict[str, int]:
    """The place of a rank in each dimension."""
    return {each.dimension: each.place for each in rank.provenance.coordinates}


def dimensions(ranks: Sequence[Rank]) -> list[str]:
    """The dimensions in which all ranks have a place."""
    every = [coordinates(rank) for rank in ranks]
    return [name for name in every[0] if all(name in other for other in every)]


def _dimensions_apart(ranks: Sequence[Rank]) -> list[str]:
    names = dimensions(ranks)
    return [name for name in names if name in _PIPELINES or _differ(ranks, name)]


def _differ(ranks: Sequence[Rank], dimension: str) -> bool:
    """Whether ranks that differ in this dimension only call different modules."""
    lines: dict[tuple[tuple[str, int], ...], list[Rank]] = {}
    for rank in ranks:
        others = {k: v for k, v in coordinates(rank).items() if k != dimension}
        lines.setdefault(tuple(sorted(others.items())), []).append(rank)
    return any(
        _have_little_in_common(line[0], other)
        for line in lines.values()
        for other in line[1:]
    )


def _have_little_in_common(one: Rank, other: Rank) -> bool:
    some, others = _modules(one), _modules(other)
    return len(some & others) < _MOST * len(some | others)


def _modules(rank: Rank) -> set[str]:
    names = {path[-1] for path, _ in rank.cells}
    return {name for name in names if rank.infos[name].kind == "module"}
