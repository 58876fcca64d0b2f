"""Hooks on one function, or on one autograd node."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final

from torchprof_hooks.instruments.functions.call import (
    FunctionCall,
    FunctionCallbacks,
    InData,
    RunningBackward,
)
from torchprof_hooks.instruments.functions.callbacks import FollowedFunctions


class FunctionSubscription:
    """A hook on one class of custom Functions, in all threads; or on one function of
    torch, in this thread."""

    def __init__(self, function: Any, name: str, hook: FunctionCallbacks) -> None:
        self.name, self.hook = name, hook
        is_class = isinstance(function, type)
        find = weakref.ref(function) if is_class else lambda: function
        self._follows = FollowedFunctions(
            hook, lambda called: called is find(), in_any_thread=is_class
        )
        self._follows.open(
            follows_functions=not is_class, follows_applications=is_class
        )
        table: Any = _classes if is_class else _of_thread.functions
        table.setdefault(function, {})[name] = self

    def close(self) -> None:
        """Disconnect the hook."""
        self._follows.close()


class NodeSubscription:
    """A hook on one autograd node. The node refers to it, and it does not refer to the
    node."""

    def __init__(self, node: Any, name: str, hook: FunctionCallbacks) -> None:
        self.name, self.hook = name, hook
        self._node_name: str = node.name()
        self._open: RunningBackward | None = None
        self._handles = [
            node.register_prehook(self._before),
            node.register_hook(self._after),
        ]
        subscriptions_of_node(node)[name] = self

    def _before(self, gradients: InData) -> None:
        call = FunctionCall(self._node_name, node_names=(self._node_name,))
        self._open = RunningBackward(self.hook, call, gradients)

    def _after(self, inputs: Any, outputs: Any) -> None:
        left, self._open = self._open, None
        if left is not None:
            left.end()

    def close(self) -> None:
        """Disconnect the hook."""
        self._open = None
        for handle in self._handles:
            handle.remove()


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.functions: dict[Any, dict[str, FunctionSubscription]] = {}


_classes: weakref.WeakKeyDictionary[type, dict[str, FunctionSubscription]] = (
    weakref.WeakKeyDictionary()
)
_of_thread = _OfThread()
_METADATA_KEY: Final = "torchprof_hooks hooks"


def subscriptions_of_function(function: Any) -> dict[str, FunctionSubscription]:
    """The hooks on a class of custom Functions, or on a torch function in this thread,
    by name."""
    if isinstance(function, type):
        return _classes.get(function, {})
    return _of_thread.functions.get(function, {})


def subscriptions_of_node(node: Any) -> dict[str, NodeSubscription]:
    """The hooks on an autograd node, by name."""
    found: dict[str, NodeSubscription] = node.metadata.setdefault(_METADATA_KEY, {})
    return found


def forget_node(node: Any) -> None:
    """Clean up a node that has no hooks any more."""
    if not subscriptions_of_node(node):
        del node.metadata[_METADATA_KEY]
