"""Connects the trackers of a hook with one function, or with one autograd node."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final

from torchprof_hooks.capture.function_taps import function_taps
from torchprof_hooks.capture.function_tracker import FunctionTracker
from torchprof_hooks.capture.tap import Tap
from torchprof_hooks.capture.thread_trackers import ThreadTrackers


class TargetTap:
    """A hook on one target, until `close`.

    name: what the hook is called there.
    hook: whose trackers are at work.
    """

    def __init__(self, name: str, hook: object) -> None:
        self.name = name
        self.hook = hook

    def close(self) -> None:
        """Disconnect the hook."""
        raise NotImplementedError


class ClassTap(TargetTap):
    """Shows the trackers of one hook the calls of one class of custom Functions."""

    def __init__(
        self, cls: type, name: str, hook: object, threads: ThreadTrackers
    ) -> None:
        super().__init__(name, hook)
        self._cls = cls
        self._threads = threads
        threads.acquire()
        function_taps.add_to_class(cls, threads)
        _classes.setdefault(cls, {})[name] = self

    def close(self) -> None:
        """Disconnect the hook."""
        function_taps.remove_from_class(self._cls, self._threads)
        self._threads.release()


class TorchFunctionTap(TargetTap):
    """Shows a tracker the calls of one torch function in this thread."""

    def __init__(
        self, function: Any, name: str, hook: object, tracker: FunctionTracker
    ) -> None:
        super().__init__(name, hook)
        self._tap = Tap(tracker, owner=hook)
        _of_thread.taps.setdefault(function, {})[name] = self

    def close(self) -> None:
        """Disconnect the hook."""
        self._tap.close()


class NodeTap(TargetTap):
    """Shows the trackers of one hook when one autograd node runs. The node holds it,
    and it holds nothing of the node."""

    def __init__(
        self, node: Any, name: str, hook: object, threads: ThreadTrackers
    ) -> None:
        super().__init__(name, hook)
        self._node_name: str = node.name()
        self._threads = threads
        threads.acquire()
        # Also when the node dies with its hooks still on.
        self._release = weakref.finalize(self, _release, weakref.ref(threads))
        self._release.atexit = False
        threads.here()  # which is told of the backward pass from now on
        self._handles = [
            node.register_prehook(self._before),
            node.register_hook(self._after),
        ]
        taps_of_node(node)[name] = self

    def _before(self, gradients: Any) -> None:
        tracker = self._threads.here()
        if isinstance(tracker, FunctionTracker):
            tracker.node_pre(self._node_name, gradients)

    def _after(self, inputs: Any, outputs: Any) -> None:
        tracker = self._threads.here()
        if isinstance(tracker, FunctionTracker):
            tracker.node_post(self._node_name)

    def close(self) -> None:
        """Disconnect the hook."""
        for handle in self._handles:
            handle.remove()
        self._release()


def _release(threads: weakref.ref[ThreadTrackers]) -> None:
    living = threads()
    if living is not None:
        living.release()


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.taps: dict[Any, dict[str, TargetTap]] = {}


_classes: weakref.WeakKeyDictionary[type, dict[str, TargetTap]] = (
    weakref.WeakKeyDictionary()
)
_of_thread = _OfThread()
_METADATA_KEY: Final = "torchprof_hooks hooks"


def taps_of_function(function: Any) -> dict[str, TargetTap]:
    """The taps on a class of custom Functions, or on a torch function in this thread,
    by name."""
    if isinstance(function, type):
        return _classes.get(function, {})
    return _of_thread.taps.get(function, {})


def taps_of_node(node: Any) -> dict[str, TargetTap]:
    """The taps on an autograd node, by name."""
    taps: dict[str, TargetTap] = node.metadata.setdefault(_METADATA_KEY, {})
    return taps


def forget_node(node: Any) -> None:
    """Leave nothing in a node that has no tap any more."""
    if not taps_of_node(node):
        del node.metadata[_METADATA_KEY]
