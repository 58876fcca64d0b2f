"""Cells of a profile as a tree of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torchprof_hooks.profiles.rows import Place, Row, row_fields


@dataclass(frozen=True, slots=True)
class Node(Row):
    """A `Row` for the calls at one place of the tree, with the calls that they make.

    The node at the top stands for the whole run; its name and class name are "".
    """

    children: tuple[Node, ...] = ()

    def walk(
        self, depth: int = 0, value: Callable[[Row], float] | None = None
    ) -> Iterator[tuple[int, Node]]:
        """(depth, node) for this node and all below it, in order; where there is a
        `value`, those with the largest one first, of those below one node."""
        coming = [(depth, self)]  # no recursion: calls can be as deep as Python goes
        while coming:
            depth, node = coming.pop()
            yield depth, node
            below = [*reversed(node.children)]
            if value is not None:
                below.sort(key=value)
            coming += [(depth + 1, child) for child in below]


def build_tree(top: Place) -> Node:
    """The tree of places as a tree of rows (see `Profile.tree`)."""

    def rank(child: Node) -> tuple[bool, int, str]:
        if child.kind in ("module", "function"):
            return False, orders[child.name], child.name
        return True, -child.cumulative_ns, child.name

    places = top.walk()
    orders = {place.name: place.info.order for place in places}
    nodes: dict[int, Node] = {}
    for place in reversed(places):  # bottom up: a node needs its children
        below = sorted((nodes.pop(id(p)) for p in place.below.values()), key=rank)
        fields = row_fields(place.name, place.info, place.module, place.phases())
        nodes[id(place)] = Node(*[*fields, tuple(below)])
    return nodes[id(top)]
