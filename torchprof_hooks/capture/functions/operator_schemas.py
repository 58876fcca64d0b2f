"""What torch declares of operations: what they write to, and which return views."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import torch

#: Batch normalization changes its running mean and variance, and does not declare it.
UNDECLARED_WRITES: Final = {
    f"aten::{name}batch_norm": frozenset({3, 4})
    for name in ("native_", "cudnn_", "miopen_")
}
#: Position of the input that says whether it does so: in training mode.
TRAINING: Final = 5


@cache
def written_inputs(name: str, count: int) -> frozenset[int]:
    """Positions of the inputs that the operation of this name writes to, if it has
    `count` inputs; by torch's declarations."""
    return frozenset(
        position
        for schema in _schemas(name)
        if len(schema.arguments) == count
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


@cache
def is_view(name: str) -> bool:
    """Whether the operation of this name returns views of its inputs and does no more,
    by torch's declarations."""
    schemas = list(_schemas(name))
    return bool(schemas) and all(
        any(result.alias_info is not None for result in schema.returns)
        and not schema.is_mutable
        for schema in schemas
    )


def _schemas(name: str) -> Iterator[Any]:
    return (overload._schema for overload in _overloads(name))


def _overloads(name: str) -> Iterator[Any]:
    """Torch's overloads of an operation. Autograd nodes and custom Functions are no
    operations, and have no overloads."""
    namespace, separator, operation = name.partition("::")
    if not separator or not operation.isidentifier():
        return
    packet = getattr(getattr(torch.ops, namespace), operation, None)
    for overload in packet.overloads() if packet is not None else ():
        yield getattr(packet, overload)
