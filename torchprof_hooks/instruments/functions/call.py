"""What the callbacks of a `FunctionHook` are given, and how they are called."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import torch

from torchprof_hooks.kernel.attachments import Attachment
from torchprof_hooks.kernel.torch_names.functions import referred_tensor

InData = tuple[torch.Tensor | None, ...]


class FunctionCall:
    """One call of a function.

    name: as the user wrote it: ``linear``, ``add``, the class name of a custom
        Function. For a node whose forward was not followed, the node's own name,
        ``AddmmBackward0``.
    module_path: qualified name of the module in whose forward it was called, "" outside
        of any module.
    input_shapes: shapes of the input tensors, lists of tensors flattened; () for a node
        whose forward was not followed. Nested tensors are ``("?",)``.
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


class FunctionCallbacks(Protocol):
    """The part of `FunctionHook` that is called for each function call."""

    name: str

    def forward_preprocess(self, function: FunctionCall, in_data: InData) -> None: ...
    def forward_postprocess(self, function: FunctionCall, in_data: InData) -> None: ...
    def backward_preprocess(
        self, function: FunctionCall, in_data: InData, out_grad: InData
    ) -> None: ...
    def backward_postprocess(
        self, function: FunctionCall, in_data: InData, out_grad: InData
    ) -> None: ...
    def _begins(self, function: FunctionCall, is_backward: bool = ...) -> None: ...
    def _over(self, function: FunctionCall | None, failed: bool = ...) -> None: ...
    def _attachments(self) -> tuple[Attachment, ...]: ...


class _Notifying(threading.local):
    """The hooks, by their ids, a callback of which this thread runs."""

    def __init__(self) -> None:
        self.hooks: set[int] = set()


_notifying: Final = _Notifying()


def is_notifying(hook: object) -> bool:
    """Whether this thread runs a callback of the hook, which is then not notified of
    the functions that the callback calls."""
    return id(hook) in _notifying.hooks


def notify(hook: object, callback: Callable[..., None], *args: object) -> None:
    """Call a callback of a hook, unless that has called a function itself."""
    hooks, key = _notifying.hooks, id(hook)
    if key in hooks:
        return
    hooks.add(key)
    try:
        callback(*args)
    finally:
        hooks.discard(key)


class RunningBackward:
    """A function whose backward runs: from just before its first node until `end`. This
    does not keep gradients alive: else torch would copy a gradient that it otherwise
    gives to a leaf as it is."""

    def __init__(
        self, hook: FunctionCallbacks, function: FunctionCall, out_grad: InData
    ) -> None:
        self._hook, self.function = hook, function
        self._gradients = [None if g is None else weakref.ref(g) for g in out_grad]
        notify(hook, hook.backward_preprocess, function, function.in_data, out_grad)
        hook._begins(function, True)

    def end(self, failed: bool = False) -> None:
        """The last node of the function has run, or the pass has failed in it."""
        hook, function = self._hook, self.function
        hook._over(function, failed)
        if not failed:
            found = (None if g is None else referred_tensor(g) for g in self._gradients)
            notify(
                hook, hook.backward_postprocess, function, function.in_data, (*found,)
            )
