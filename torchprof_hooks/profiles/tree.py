"""Cells of a profile as a tree of calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torchprof_hooks.profiles.cells import Cells, Chain, Infos, enclosing_module
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.rows import PhaseSums, Row


@dataclass(frozen=True, slots=True)
class Node(Row):
    """A `Row` for the calls at one place of the tree, with those made from there.

    The node at the top stands for the whole run; its name and class name are "".
    """

    children: tuple[Node, ...] = ()

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """(depth, node) for this node and all below it, in order."""
        yield depth, self
        for child in self.children:
            yield from child.walk(depth + 1)


def build_tree(cells: Cells, infos: Infos) -> Node:
    """See `Profile.tree`."""
    sums: dict[Chain, PhaseSums] = {(): PhaseSums()}
    children: dict[Chain, list[Chain]] = {(): []}
    for (path, phase), totals in cells.items():
        for length in range(1, len(path) + 1):
            here = path[:length]
            if here not in sums:
                sums[here] = PhaseSums()
                children[here] = []
                children[here[:-1]].append(here)
        for length in range(len(path) + 1):
            sums[path[:length]].add_inside(phase, totals)
        sums[path].add_own(phase, totals)

    def place(child: Node) -> tuple[bool, int, str]:
        if child.kind in ("module", "function"):
            return False, infos[child.name].order, child.name
        return True, -child.cumulative_ns, child.name

    def node(path: Chain) -> Node:
        info = infos[path[-1]] if path else ModuleInfo(kind="outside")
        below = sorted(map(node, children[path]), key=place)
        return Node(
            path[-1] if path else "",
            info.class_name,
            info.kind,
            info.aliases,
            info.compiled,
            sums[path].result(),
            enclosing_module(path, infos),
            info.implementation,
            info.inputs,
            children=tuple(below),
        )

    return node(())
