"""Connects the trackers of a hook with one function, or with one autograd node."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final

from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.function_interception import function_interception
from torchprof_hooks.capture.functions.function_calls import FunctionCalls
from torchprof_hooks.capture.record.function_names import function_name
from torchprof_hooks.capture.tracking.thread_trackers import (
    TargetSubscription,
    ThreadTrackers,
)
from torchprof_hooks.capture.tracking.tracker import Tracker


class ClassSubscription(TargetSubscription):
    """Shows the trackers of one hook the calls of one class of custom Functions."""

    def __init__(
        self, cls: type, name: str, hook: object, threads: ThreadTrackers
    ) -> None:
        super().__init__(name, hook, threads)
        self._cls = weakref.ref(cls)
        _classes.setdefault(cls, {})[name] = self
        function_interception.add_to_class(cls, threads, self)

    def close(self) -> None:
        """Disconnect the hook."""
        super().close()
        cls = self._cls()
        if cls is not None:
            function_interception.remove_from_class(cls, self._threads, self)
            for tracker in self._threads.trackers:
                if tracker.functions is not None:
                    tracker.functions.leave(tracker, cls)


class FunctionSubscription(TargetSubscription):
    """Shows a tracker the calls of one torch function in this thread."""

    def __init__(
        self, function: Any, name: str, hook: object, threads: ThreadTrackers
    ) -> None:
        super().__init__(name, hook, threads)
        self._function = function
        self._functions, self._tracker = _tracker_in(self._threads)
        _of_thread.subscriptions.setdefault(function, {})[name] = self
        attachments.attach(self._functions.mode_on_stack, self)

    def close(self) -> None:
        """Disconnect the hook."""
        super().close()
        if not _of_thread.subscriptions.get(self._function):
            _of_thread.subscriptions.pop(self._function, None)
        self._functions.leave(self._tracker, self._function)
        attachments.detach(self._functions.mode_on_stack, self)


class NodeSubscription(TargetSubscription):
    """Shows the trackers of one hook when one autograd node runs. The node refers to
    it, and it does not refer to the node."""

    def __init__(
        self, node: Any, name: str, hook: object, threads: ThreadTrackers
    ) -> None:
        super().__init__(name, hook, threads)
        self._node_name: str = node.name()
        _tracker_in(self._threads)  # makes a tracker, which now sees backward passes
        self._handles = [
            node.register_prehook(self._before),
            node.register_hook(self._after),
        ]
        subscriptions_of_node(node)[name] = self

    def _before(self, gradients: Any) -> None:
        functions, tracker = _tracker_in(self._threads)
        functions.node_pre(tracker, self._node_name, gradients)

    def _after(self, inputs: Any, outputs: Any) -> None:
        functions, tracker = _tracker_in(self._threads)
        functions.node_post(tracker, self._node_name)

    def close(self) -> None:
        """Disconnect the hook."""
        super().close()
        for handle in self._handles:
            handle.remove()


def _tracker_in(threads: ThreadTrackers) -> tuple[FunctionCalls, Tracker]:
    tracker = threads.here()
    assert tracker.functions is not None  # hooks on functions have made it
    return tracker.functions, tracker


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.subscriptions: dict[Any, dict[str, TargetSubscription]] = {}


_classes: weakref.WeakKeyDictionary[type, dict[str, TargetSubscription]] = (
    weakref.WeakKeyDictionary()
)
_of_thread = _OfThread()
_METADATA_KEY: Final = "torchprof_hooks hooks"


def subscriptions_of_function(function: Any) -> dict[str, TargetSubscription]:
    """The subscriptions to a class of custom Functions, or to a torch function in this
    thread, by the names of their hooks."""
    if isinstance(function, type):
        return _classes.get(function, {})
    return _of_thread.subscriptions.get(function, {})


def subscriptions_of_functions_named(name: str) -> dict[str, TargetSubscription]:
    """The subscriptions to classes and functions that reports call by this name, by the
    names of their hooks."""
    found: dict[str, TargetSubscription] = {}
    for function in [*_classes, *_of_thread.subscriptions]:
        if function_name(function) == name:
            found.update(subscriptions_of_function(function))
    return found


def subscriptions_of_node(node: Any) -> dict[str, TargetSubscription]:
    """The subscriptions to an autograd node, by the names of their hooks."""
    found: dict[str, TargetSubscription] = node.metadata.setdefault(_METADATA_KEY, {})
    return found


def forget_node(node: Any) -> None:
    """Clean up a node that has no subscriptions any more."""
    if not subscriptions_of_node(node):
        del node.metadata[_METADATA_KEY]
