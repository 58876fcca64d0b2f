"""The autograd nodes that what a call returned leads to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import torch

from torchprof_hooks.capture.torch_names.autograd import node_of

#: How deep outputs are searched for tensors.
OUTPUT_DEPTH: Final = 4
#: How many parts of an output are looked at, about.
OUTPUTS_SEARCHED: Final = 256


def nodes_behind(outputs: object) -> list[Any]:
    """The autograd nodes of tensors in what a module or a function returned.

    Runs no code of the user's: containers of other kinds than Python's own (and classes
    derived from these), very deep and very long ones are not searched through. Where no
    node is found, a record is not tied to its graph; see `NEWEST_RECORDS`. Mocks and
    proxies lie about their class to `isinstance`, which is therefore not used.
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
