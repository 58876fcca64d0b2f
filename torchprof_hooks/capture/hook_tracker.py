"""Chooses how a hook is served: by measuring alone, or with callbacks as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.callback_tracker import (
    BackwardCallbackTracker,
    Callbacks,
    CallbackTracker,
)
from torchprof_hooks.capture.tracker import Tracker

Callback = TypeVar("Callback", bound=Callable[..., Any])

_FORWARD = ("forward_preprocess", "forward_postprocess")
_BACKWARD = ("backward_preprocess", "backward_postprocess")


def make_tracker(hook: Callbacks, everywhere: bool, backward: bool) -> Tracker:
    """A tracker for `hook` in the running thread.

    Callbacks that no class of the hook overrides are never called: a hook that only
    measures takes the short way, without an object for each call.

    everywhere: whether the hook is registered for all modules.
    backward: whether it measures backward, besides what its callbacks ask for.
    """
    if _overrides(hook, _BACKWARD) or (backward and _overrides(hook, _FORWARD)):
        return BackwardCallbackTracker(hook, everywhere)
    if _overrides(hook, _FORWARD):
        return CallbackTracker(hook, everywhere)
    return BackwardTracker() if backward else Tracker()


def is_default(callback: Callback) -> Callback:
    """Marks a callback of the base class, which does nothing and need not be called."""
    callback.is_default = True  # type: ignore[attr-defined]
    return callback


def _overrides(hook: Callbacks, names: tuple[str, ...]) -> bool:
    return any(not getattr(getattr(hook, name), "is_default", False) for name in names)
