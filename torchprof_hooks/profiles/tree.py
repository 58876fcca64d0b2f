"""Cells of a profile as a tree of calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchprof_hooks.profiles.cells import (
    Cells,
    Infos,
    with_counted,
    without_functions,
)
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.rows import PhaseSums, Row, row_fields


@dataclass(frozen=True, slots=True)
class Node(Row):
    """A `Row` for the calls at one place of the tree, with the calls that they make.

    The node at the top stands for the whole run; its name and class name are "".
    """

    children: tuple[Node, ...] = ()

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """(depth, node) for this node and all below it, in order."""
        coming = [(depth, self)]  # no recursion: calls can be as deep as Python goes
        while coming:
            depth, node = coming.pop()
            yield depth, node
            coming += [(depth + 1, child) for child in reversed(node.children)]


class _Branch:
    """A place in the tree that is being built, with the places below it by name.

    module: the innermost module around it.
    """

    def __init__(self, name: str, info: ModuleInfo, module: str) -> None:
        self.name = name
        self.info = info
        self.module = name if info.kind == "module" else module
        self.sums = PhaseSums()
        self.below: dict[str, _Branch] = {}

    def at(self, name: str, infos: Infos) -> _Branch:
        """The place with this name directly below, made if it is missing."""
        if name not in self.below:
            self.below[name] = _Branch(name, infos[name], self.module)
        return self.below[name]


def build_tree(cells: Cells, infos: Infos, functions: bool) -> Node:
    """See `Profile.tree`."""
    cells = with_counted(cells)
    if not functions:
        cells, infos = without_functions(cells, infos)
    top = _Branch("", ModuleInfo(kind="outside"), "")
    for (path, phase), totals in cells.items():
        place = top
        place.sums.add_inside(phase, totals)
        for name in path:
            place = place.at(name, infos)
            place.sums.add_inside(phase, totals)
        place.sums.add_own(phase, totals)

    def rank(child: Node) -> tuple[bool, int, str]:
        if child.kind in ("module", "function"):
            return False, infos[child.name].order, child.name
        return True, -child.cumulative_ns, child.name

    nodes: dict[int, Node] = {}
    for place in reversed(_places(top)):  # bottom up: a node needs its children
        below = sorted((nodes.pop(id(p)) for p in place.below.values()), key=rank)
        fields = row_fields(place.name, place.info, place.module, place.sums)
        nodes[id(place)] = Node(**fields, children=tuple(below))
    return nodes[id(top)]


def _places(top: _Branch) -> list[_Branch]:
    """All places of a tree, each before those below it."""
    places = [top]
    for place in places:
        places += place.below.values()
    return places
