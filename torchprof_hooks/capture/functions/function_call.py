"""What the callbacks of a `FunctionHook` are told."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from torchprof_hooks.capture.torch_names.functions import referred_tensor


class FunctionCall:
    """One call of a function.

    name: as the user wrote it: ``linear``, ``add``, the class name of a custom
        Function. For a node whose forward was not seen, the node's own name,
        ``AddmmBackward0``.
    module_path: qualified name of the module in whose forward it was called, "" outside
        of any module.
    input_shapes: shapes of the input tensors, lists of tensors flattened; () for a node
        whose forward was not seen. Nested tensors show as ``("?",)``.
    node_names: names of the autograd nodes that the call made, in that order; () until
        it has returned.
    """

    __slots__ = (
        "__weakref__",
        "_inputs",
        "input_shapes",
        "module_path",
        "name",
        "node_names",
    )

    def __init__(
        self,
        name: str,
        module_path: str = "",
        inputs: Iterable[torch.Tensor] = (),
        input_shapes: tuple[tuple[int | str, ...], ...] = (),
        node_names: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.module_path = module_path
        self.input_shapes = input_shapes
        self.node_names = node_names
        self._inputs = tuple(map(weakref.ref, inputs))

    @property
    def label(self) -> str:
        """What reports call it: the name."""
        return self.name

    @property
    def in_data(self) -> tuple[torch.Tensor | None, ...]:
        """The input tensors that are still alive, None for the others."""
        return tuple(map(referred_tensor, self._inputs))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(name={self.name!r}, module_path="
            f"{self.module_path!r}, input_shapes={self.input_shapes}, "
            f"node_names={self.node_names})"
        )
