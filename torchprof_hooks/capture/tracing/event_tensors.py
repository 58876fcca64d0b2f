"""Tensors, as the events of torch's profiler show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchprof_hooks.capture.torch_names.profiler import TENSOR
from torchprof_hooks.profiles.trace.step_trace import Operation, TensorType


def tensors_among(inputs: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    """Position of each tensor among the inputs of an event, also of those in lists."""
    for position, value in enumerate(inputs):
        if isinstance(value, TENSOR):
            yield position, value
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, TENSOR):
                    yield position, item


def first_tensor(fields: Any) -> Any:
    """The first tensor among the inputs of an event, None if there is none."""
    return next((tensor for _, tensor in tensors_among(fields.inputs)), None)


def type_of(tensor: Any) -> TensorType:
    """Data type and shape of a tensor, as the profiler shows them."""
    return TensorType(str(tensor.dtype).removeprefix("torch."), tuple(tensor.sizes))


class ViewTypes:
    """Finds out data types and shapes of views. Events show what an operation was
    given, not what it returned; but most of what one returns is given to another."""

    def __init__(self) -> None:
        #: By block, the oldest first: what returned a view of it that was not yet
        #: seen, and the address of the tensor that the view is of.
        self.unseen: dict[int, list[tuple[Operation, int | None]]] = {}

    def returned(
        self, operation: Operation, block: int, source: Any, is_same: bool
    ) -> None:
        """An operation has returned a view of `source`, or changed the view that
        `source` itself is (`is_same`)."""
        operation.views[block] = None
        address = None if is_same else source.impl_ptr
        self.unseen.setdefault(block, []).append((operation, address))

    def taken(self, block: int, tensor: Any) -> None:
        """An operation is given a tensor of a block of `unseen`."""
        unseen = self.unseen[block]
        address = tensor.impl_ptr
        for position, (operation, source) in enumerate(unseen):
            if address != source:  # else, it is what the view is of
                operation.views[block] = type_of(tensor)
                del unseen[position]
                break
        if not unseen:
            del self.unseen[block]
