"""Chooses how a hook is served: by measuring alone, or with callbacks as well."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.callback_tracker import (
    BackwardCallbackTracker,
    Callbacks,
    CallbackTracker,
)
from torchprof_hooks.capture.function_callbacks import (
    FunctionCallbacks,
    FunctionCallbackTracker,
)
from torchprof_hooks.capture.function_targets import is_on_function, taps_of_function
from torchprof_hooks.capture.function_tracker import FunctionTracker
from torchprof_hooks.capture.meter_tracker import MeterTracker
from torchprof_hooks.capture.meters import Meter
from torchprof_hooks.capture.module_tap import module_taps
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.tracker import Tracker

Callback = TypeVar("Callback", bound=Callable[..., Any])

_FORWARD = ("forward_preprocess", "forward_postprocess")
_BACKWARD = ("backward_preprocess", "backward_postprocess")


def make_tracker(
    hook: Callbacks, everywhere: bool, backward: bool, meters: Sequence[Meter] = ()
) -> Tracker:
    """A tracker for `hook` in the running thread.

    Callbacks that no class of the hook overrides are never called: a hook that only
    measures takes the short way, without an object for each call.

    everywhere: whether the hook is registered for all modules; it then leaves alone
        those that have a hook of its name of their own.
    backward: whether it measures backward, besides what its callbacks ask for.
    meters: what it reads besides the host's clock; these ask for backward, too.
    """
    tracker = _new_tracker(hook, backward, meters)
    if everywhere:
        tracker.is_replaced = lambda module: hook.name in module_taps(module)
        _everywhere.add(tracker)
    return tracker


def _new_tracker(hook: Callbacks, backward: bool, meters: Sequence[Meter]) -> Tracker:
    if meters:
        if _overrides(hook, _FORWARD + _BACKWARD):
            return _MeteredCallbackTracker(hook, meters=meters, follows_functions=False)
        return MeterTracker(meters, follows_functions=False)
    if _overrides(hook, _BACKWARD) or (backward and _overrides(hook, _FORWARD)):
        return BackwardCallbackTracker(hook)
    if _overrides(hook, _FORWARD):
        return CallbackTracker(hook)
    return BackwardTracker() if backward else Tracker()


class _MeteredCallbackTracker(BackwardCallbackTracker, MeterTracker):
    def moved(self, closed: list[Site], opened: list[Site]) -> None:
        """A pass has gone over to other owners: read first, then call back."""
        if self.is_told:
            MeterTracker.moved(self, closed, opened)
        BackwardCallbackTracker.moved(self, closed, opened)


def make_function_tracker(
    hook: FunctionCallbacks,
    everywhere: bool,
    meters: Sequence[Meter] = (),
    **options: Any,
) -> FunctionTracker:
    """The same for a hook on functions.

    everywhere: whether the hook is registered for all functions; otherwise it is told
        of those that it was put on.
    options: of `FunctionTracker`.
    """
    if not everywhere:
        options["follows_modules"] = False
        options["wants"] = lambda function: is_on_function(hook, function)
    if meters:
        options["meters"] = meters
    tracker: FunctionTracker
    if _overrides(hook, _FORWARD + _BACKWARD):
        if everywhere:
            options["follows_modules"] = True  # callbacks are told the module
        kind = _MeteredFunctionCallbackTracker if meters else FunctionCallbackTracker
        tracker = kind(hook, **options)
    else:
        tracker = MeterTracker(**options) if meters else FunctionTracker(**options)
    if everywhere:
        tracker.is_replaced_function = lambda function: (
            hook.name in taps_of_function(function)
        )
        _everywhere.add(tracker)
    return tracker


class _MeteredFunctionCallbackTracker(FunctionCallbackTracker, MeterTracker):
    def moved(self, closed: list[Site], opened: list[Site]) -> None:
        """A pass has gone over to other owners: read first, then call back."""
        if self.is_told:
            MeterTracker.moved(self, closed, opened)
        FunctionCallbackTracker.moved(self, closed, opened)


def ask_again(target: Any) -> None:
    """A hook was put on `target`: it may take the place of a thread-wide one."""
    for tracker in list(_everywhere):
        if isinstance(target, torch.nn.Module):
            tracker.forget(target)
        elif isinstance(tracker, FunctionTracker):
            tracker.forget_functions()


#: Trackers that serve all modules of their thread.
_everywhere: weakref.WeakSet[Tracker] = weakref.WeakSet()


def is_default(callback: Callback) -> Callback:
    """Marks a callback of the base class, which does nothing and need not be called."""
    callback.is_default = True  # type: ignore[attr-defined]
    return callback


def _overrides(hook: object, names: tuple[str, ...]) -> bool:
    return any(not getattr(getattr(hook, name), "is_default", False) for name in names)
