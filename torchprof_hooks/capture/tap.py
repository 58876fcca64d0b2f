"""Connects trackers with torch, and leaves no trace once they are gone."""

from __future__ import annotations

import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from torchprof_hooks.capture.backward_tracker import BackwardTracker, PassRequest
from torchprof_hooks.capture.torch_names import (
    NO_SEQUENCE_NUMBER,
    RunBackward,
    is_tracing,
    pre_hooks_of,
    replace_backward_entry,
    restore_backward_entry,
    sequence_number,
)
from torchprof_hooks.capture.tracker import Tracker


class Tap:
    """Lets a tracker see every module call of the process, until `close`.

    A process without an open tap runs exactly as without this package: torch takes the
    short way through module calls as soon as its tables of global hooks are empty.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        _hush.acquire()
        self._handles: list[RemovableHandle] = [
            register_module_forward_pre_hook(tracker.forward_pre),
            # always_call: a forward that raises closes its call all the same.
            register_module_forward_hook(tracker.forward_post, always_call=True),
        ]
        if isinstance(tracker, BackwardTracker):
            self._handles += [
                register_optimizer_step_pre_hook(tracker.optimizer_pre),
                register_optimizer_step_post_hook(tracker.optimizer_post),
            ]
            _backward_entry.add(tracker)

    def close(self, by_exception: bool = False) -> None:
        """Disconnect the tracker; calls that are open end here.

        by_exception: whether an exception is the reason.
        """
        for handle in self._handles:
            handle.remove()
        self._tracker.abort_all(by_exception)
        if isinstance(self._tracker, BackwardTracker):
            _backward_entry.remove(self._tracker)
        _hush.release()


class ThreadTrackers:
    """A tracker for each thread that needs one, made when it is first asked for.

    While it has users, its trackers see backward passes.
    """

    def __init__(self, make_tracker: Callable[[], Tracker]) -> None:
        self._make_tracker = make_tracker
        self._local = threading.local()
        self._users = 0
        self.trackers: list[Tracker] = []

    def here(self) -> Tracker:
        """The running thread's tracker."""
        tracker: Tracker | None = getattr(self._local, "tracker", None)
        if tracker is None:
            tracker = self._local.tracker = self._make_tracker()
            self.trackers.append(tracker)
            if isinstance(tracker, BackwardTracker):
                _backward_entry.add(tracker)
        return tracker

    def acquire(self) -> None:
        """Count one user more."""
        self._users += 1
        if self._users == 1:
            for tracker in self.trackers:
                if isinstance(tracker, BackwardTracker):
                    _backward_entry.add(tracker)

    def release(self) -> None:
        """Count one user less."""
        self._users -= 1
        if not self._users:
            for tracker in self.trackers:
                if isinstance(tracker, BackwardTracker):
                    _backward_entry.remove(tracker)


class ModuleTap:
    """Lets the trackers of one hook see the calls of one module, in any thread.

    The only reference to it is in the module's own table of hooks: it lives and dies
    with the module, also when the hook holds the module in turn.

    name: what the hook is called on this module.
    hook: whose trackers these are.
    """

    def __init__(
        self, module: torch.nn.Module, name: str, hook: object, threads: ThreadTrackers
    ) -> None:
        self.name = name
        self.hook = hook
        self._handles = [
            module.register_forward_pre_hook(_PreHook(self, threads), with_kwargs=True),
            module.register_forward_hook(_PostHook(self, threads), always_call=True),
        ]
        threads.acquire()
        # Also when the module dies with its hooks still on.
        self._release = weakref.finalize(module, _release, weakref.ref(threads))
        self._release.atexit = False

    def close(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()
        self._release()


def _release(threads: weakref.ref[ThreadTrackers]) -> None:
    living = threads()
    if living is not None:
        living.release()


def module_taps(module: torch.nn.Module) -> dict[str, ModuleTap]:
    """The taps on `module`, by name."""
    hooks = pre_hooks_of(module)
    return {h.tap.name: h.tap for h in hooks if isinstance(h, _PreHook)}


class ProcessTap:
    """Lets trackers see every module call in every thread, for the rest of the process.

    Each thread gets a tracker of its own from `make_tracker`.
    """

    def __init__(self, make_tracker: Callable[[], Tracker]) -> None:
        self.threads = ThreadTrackers(make_tracker)
        self.threads.acquire()
        _hush.acquire()
        register_module_forward_pre_hook(self._forward_pre)
        register_module_forward_hook(self._forward_post, always_call=True)

    def _forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        if not is_dynamo_compiling():
            self.threads.here().forward_pre(module, args)

    def _forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        if not is_dynamo_compiling():
            self.threads.here().forward_post(module, args, outputs)


class _ModuleHook:
    """A hook in a module's own table, which goes along when the module is copied or
    pickled. The copy is not measured: in it, the hook is a function that does nothing.
    """

    def __init__(self, tap: ModuleTap, threads: ThreadTrackers) -> None:
        self.tap = tap
        self._threads = threads

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return _hook_of_copies, ()


class _PreHook(_ModuleHook):
    def __call__(self, module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        if not is_dynamo_compiling():
            self._threads.here().module_pre(module, args, kwargs)


class _PostHook(_ModuleHook):
    def __call__(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        if not is_dynamo_compiling():
            self._threads.here().forward_post(module, args, outputs)


def _hook_of_copies() -> Callable[..., None]:
    return _not_measured


def _not_measured(*_: Any) -> None:
    return None


class _BackwardEntry:
    """Tells trackers when a backward pass begins and ends.

    torch has no hook for that, so while any tracker listens, the function through which
    Python enters the engine is replaced by one that tells them and then does the same.
    """

    def __init__(self) -> None:
        # Weak: a tracker may hold, by its hook, the very module that keeps it alive.
        self._trackers: tuple[weakref.ref[BackwardTracker], ...] = ()
        self._original: RunBackward | None = None
        self._ours: RunBackward | None = None

    def add(self, tracker: BackwardTracker) -> None:
        with _lock:
            reference = weakref.ref(tracker, lambda _: self.remove(None))
            self._trackers = (*self._trackers, reference)
            if self._original is None:
                self._original = replace_backward_entry(self._make)

    def remove(self, tracker: BackwardTracker | None) -> None:
        """Forget `tracker`, and those that are gone."""
        with _lock:
            self._trackers = tuple(
                reference
                for reference in self._trackers
                if reference() is not None and reference() is not tracker
            )
            if not self._trackers and self._original is not None:
                assert self._ours is not None
                restore_backward_entry(self._ours, self._original)
                self._original = None

    def _trackers_here(self) -> list[BackwardTracker]:
        living = (reference() for reference in self._trackers)
        return [t for t in living if t is not None and t.works_here()]

    def _make(self, run_backward: RunBackward) -> RunBackward:
        def run_measured_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or not self._trackers or is_tracing():
                return run_backward(outputs, *args, **kwargs)
            begun: list[BackwardTracker] = []
            results: Any = None
            failed = True
            try:
                for tracker in self._trackers_here():
                    tracker.begin_pass(_request(outputs, *args))
                    begun.append(tracker)
                results = run_backward(outputs, *args, **kwargs)
                failed = False
                return results
            finally:
                for tracker in reversed(begun):
                    tracker.end_pass(results, failed)

        self._ours = run_measured_backward
        return run_measured_backward


def _request(
    outputs: Iterable[Any],
    gradients: Any = (),
    keeps_graph: Any = False,
    makes_graph: Any = False,
    inputs: Iterable[Any] = (),
    *_: Any,
) -> PassRequest:
    """What the engine's positional arguments ask for."""
    roots = [node for node in map(_node, outputs) if node is not None]
    numbers = [
        NO_SEQUENCE_NUMBER if node is None else sequence_number(node)
        for node in map(_node, inputs)
    ]
    # The gradient of the oldest input is only handed over: its node does not run, nor
    # do older ones. A leaf has no number, and may be behind any node.
    stop = min(numbers) if numbers and NO_SEQUENCE_NUMBER not in numbers else -1
    return PassRequest(roots, bool(keeps_graph), bool(makes_graph), stop)


def _node(edge: Any) -> Any:
    """The node of a tensor (None of a leaf) or of a ``GradientEdge``."""
    return edge.grad_fn if isinstance(edge, torch.Tensor) else edge.node


class _HushedWarning:
    """torch.compile warns its users when global hooks fire for a compiled module as
    well. Ours know how to deal with that, and their user can do nothing about it."""

    # Put into the list by hand: filterwarnings() would also make Python forget which
    # warnings it has shown already, and show them all again.
    _filter = (
        "ignore",
        re.compile(r"Using `torch\.compile\(module\)` when there are global hooks"),
        UserWarning,
        None,
        0,
    )

    def __init__(self) -> None:
        self._users = 0

    def acquire(self) -> None:
        with _lock:
            self._users += 1
            if self._users == 1:
                warnings.filters.insert(0, self._filter)  # type: ignore[attr-defined]

    def release(self) -> None:
        with _lock:
            self._users -= 1
            if not self._users and self._filter in warnings.filters:
                warnings.filters.remove(self._filter)  # type: ignore[attr-defined]


# Reentrant: garbage may be collected, and a tracker with it, while it is held.
_lock = threading.RLock()
_hush = _HushedWarning()
_backward_entry = _BackwardEntry()
