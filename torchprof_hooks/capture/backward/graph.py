"""Walks through graphs of autograd nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import torch

from torchprof_hooks.capture.torch_names.autograd import (
    NO_SEQUENCE_NUMBER,
    node_of,
    sequence_number,
)

#: How deep outputs are searched for tensors.
OUTPUT_DEPTH: Final = 4
#: How many parts of an output are looked at, about.
OUTPUTS_SEARCHED: Final = 256


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
    """The autograd nodes of tensors in what a module or a function returned.

    Runs no code of the user's: containers of other kinds than Python's own (and classes
    derived from these), very deep and very long ones are not searched through. Mocks
    and proxies lie about their class to `isinstance`, which is therefore not used.
    """
    nodes: list[Any] = []
    to_visit: list[tuple[Any, int]] = [(outputs, 0)]
    for value, depth in to_visit:
        if issubclass(type(value), torch.Tensor):
            node = node_of(value)
            if node is not None:
                nodes.append(node)
        elif depth < OUTPUT_DEPTH and len(to_visit) < OUTPUTS_SEARCHED:
            parts = islice(_parts(value), OUTPUTS_SEARCHED)
            to_visit.extend((part, depth + 1) for part in parts)
    return nodes


def _parts(value: Any) -> Iterator[object]:
    kind = type(value)
    if issubclass(kind, tuple):
        return tuple.__iter__(value)
    if issubclass(kind, list):
        return list.__iter__(value)
    if issubclass(kind, dict):
        return iter(dict.values(value))
    if not issubclass(kind, type) and dataclasses.is_dataclass(kind):
        return iter(_attributes(value).values())
    return iter(())


def _attributes(value: object) -> dict[str, object]:
    try:
        found: dict[str, object] = object.__getattribute__(value, "__dict__")
    except AttributeError:  # it has slots
        return {}
    return found
