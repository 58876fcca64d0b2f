"""Walks through graphs of autograd nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torchprof_hooks.kernel.torch_names.autograd import (
    NO_SEQUENCE_NUMBER,
    node_of,
    sequence_number,
)
from torchprof_hooks.kernel.torch_names.tensors import tensors_in


def reachable_nodes(roots: Iterable[Any]) -> dict[int, Any] | None:
    """The nodes that a backward pass from `roots` can run, by sequence number; None if
    two of them have the same number, as each thread numbers its own nodes.

    Nodes that accumulate into leaves have no number, and are left out: each runs right
    after the node that feeds it, and belongs to that node's owner.
    """
    found: dict[int, Any] = {NO_SEQUENCE_NUMBER: None}
    to_visit: list[Any] = []
    for root in roots:
        number = sequence_number(root)
        if number not in found:
            found[number] = root
            to_visit.append(root)
    visit, pop = to_visit.append, to_visit.pop
    while to_visit:
        for node, _ in pop().next_functions:
            if node is not None:
                number = node._sequence_nr()  # inlined: the hot loop of a pass
                if number not in found:
                    found[number] = node
                    visit(node)
                elif found[number] is not node and number != NO_SEQUENCE_NUMBER:
                    return None
    del found[NO_SEQUENCE_NUMBER]
    return found


def nodes_within(roots: Iterable[Any], low: int, high: int) -> list[Any]:
    """The nodes with a number in ``[low, high)`` that can be reached from `roots`
    through nothing but such nodes, in the order in which they were made."""
    found: dict[int, Any] = {}
    to_visit = list(roots)
    while to_visit:
        node = to_visit.pop()
        number = sequence_number(node)
        if low <= number < high and number not in found:
            found[number] = node
            to_visit += [inner for inner, _ in node.next_functions if inner is not None]
    return [found[number] for number in sorted(found)]


def nodes_behind(outputs: object) -> list[Any]:
    """The autograd nodes of tensors in what a module or a function returned (see
    `tensors_in`)."""
    nodes = map(node_of, tensors_in([outputs]))
    return [node for node in nodes if node is not None]
