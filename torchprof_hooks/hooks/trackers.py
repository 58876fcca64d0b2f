"""Trackers for hooks on modules."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from torchprof_hooks.instruments import interrupting
from torchprof_hooks.kernel.callbacks import Callbacks, LinkCallbacks
from torchprof_hooks.kernel.make_tracker import new_passes
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.subscriptions import module_subscriptions
from torchprof_hooks.kernel.tracker import Tracker

Callback = TypeVar("Callback", bound=Callable[..., Any])

_FORWARD = ("forward_preprocess", "forward_postprocess")
_BACKWARD = ("backward_preprocess", "backward_postprocess")


def make_tracker(
    hook: Callbacks,
    everywhere: bool,
    backward: bool,
    observers: Sequence[Observer] = (),
) -> Tracker:
    """A tracker for `hook` in the running thread.

    Callbacks that no class of the hook overrides are never called: for a hook that only
    measures, no object is made for each call.

    everywhere: whether the hook is registered for all modules; it then leaves out
        modules that have a hook of the same name themselves.
    backward: whether it measures backward even if no callback asks for that.
    observers: what it measures besides the host's time; with any, it measures backward.
    """
    measures_backward = backward or bool(observers) or _overrides(hook, _BACKWARD)
    callbacks = LinkCallbacks(hook) if _overrides(hook, _FORWARD + _BACKWARD) else None
    if everywhere and measures_backward:
        # Who is called back is called for modules that load data, too.
        observers = (*observers, *interrupting(callbacks is not None))
    # What a callback raises ends the pass, which only hooks on nodes can do.
    passes = new_passes(callbacks) if measures_backward else None
    tracker = Tracker(backward=passes, observers=observers, callbacks=callbacks)
    tracker.is_notified_by_hooks = not everywhere
    if everywhere:
        tracker.is_left_out = lambda _, module: (
            hook.name in module_subscriptions(module)
        )
        _everywhere.add(tracker)
    return tracker


def ask_again(target: torch.nn.Module) -> None:
    """Have trackers find out again whether they follow `target`: a hook was put on it,
    or taken off, and may replace one that is on all modules."""
    for tracker in list(_everywhere):
        tracker.tree.forget(target)


#: Trackers of hooks on all modules of their thread.
_everywhere: weakref.WeakSet[Tracker] = weakref.WeakSet()


def is_default(callback: Callback) -> Callback:
    """Marks a callback of the base class, which does nothing and need not be called."""
    callback.is_default = True  # type: ignore[attr-defined]
    return callback


def _overrides(hook: object, names: tuple[str, ...]) -> bool:
    return any(not getattr(getattr(hook, name), "is_default", False) for name in names)
