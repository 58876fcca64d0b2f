"""Chooses how a hook is served: by measuring alone, or with callbacks as well."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.callback_tracker import (
    BackwardCallbackTracker,
    Callbacks,
    CallbackTracker,
)
from torchprof_hooks.capture.module_tap import module_taps
from torchprof_hooks.capture.tracker import Tracker

Callback = TypeVar("Callback", bound=Callable[..., Any])

_FORWARD = ("forward_preprocess", "forward_postprocess")
_BACKWARD = ("backward_preprocess", "backward_postprocess")


def make_tracker(hook: Callbacks, everywhere: bool, backward: bool) -> Tracker:
    """A tracker for `hook` in the running thread.

    Callbacks that no class of the hook overrides are never called: a hook that only
    measures takes the short way, without an object for each call.

    everywhere: whether the hook is registered for all modules; it then leaves alone
        those that have a hook of its name of their own.
    backward: whether it measures backward, besides what its callbacks ask for.
    """
    tracker: Tracker
    if _overrides(hook, _BACKWARD) or (backward and _overrides(hook, _FORWARD)):
        tracker = BackwardCallbackTracker(hook)
    elif _overrides(hook, _FORWARD):
        tracker = CallbackTracker(hook)
    else:
        tracker = BackwardTracker() if backward else Tracker()
    if everywhere:
        tracker.is_replaced = lambda module: hook.name in module_taps(module)
        _everywhere.add(tracker)
    return tracker


def ask_again(module: torch.nn.Module) -> None:
    """A hook was put on `module`: it may take the place of a thread-wide one."""
    for tracker in list(_everywhere):
        tracker.forget(module)


#: Trackers that serve all modules of their thread.
_everywhere: weakref.WeakSet[Tracker] = weakref.WeakSet()


def is_default(callback: Callback) -> Callback:
    """Marks a callback of the base class, which does nothing and need not be called."""
    callback.is_default = True  # type: ignore[attr-defined]
    return callback


def _overrides(hook: Callbacks, names: tuple[str, ...]) -> bool:
    return any(not getattr(getattr(hook, name), "is_default", False) for name in names)
