"""Puts trackers together: the only place that knows all parts that one can have.

Code that follows functions, or hooks nodes, is imported only when it is needed: it is
a fifth of all that a profile of modules needs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from torchprof_hooks.capture.backward.backward_pass import Passes
from torchprof_hooks.capture.core import CORE
from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.tracking.callbacks import Callbacks, LinkCallbacks
from torchprof_hooks.capture.tracking.meters.meters import Meter
from torchprof_hooks.capture.tracking.module_subscription import module_subscriptions
from torchprof_hooks.capture.tracking.tracker import Tracker

if TYPE_CHECKING:
    from torchprof_hooks.capture.functions.function_callbacks import FunctionCallbacks
    from torchprof_hooks.capture.functions.function_calls import FunctionCalls

Callback = TypeVar("Callback", bound=Callable[..., Any])

_FORWARD = ("forward_preprocess", "forward_postprocess")
_BACKWARD = ("backward_preprocess", "backward_postprocess")


def new_tracker(
    names: ModuleNames | None = None,
    *,
    backward: bool = True,
    functions: FunctionCalls | None = None,
    meters: Sequence[Meter] = (),
) -> Tracker:
    """A tracker for the running thread that measures, and has no callbacks.

    backward: whether it measures backward passes, and what interrupts calls.
    """
    return Tracker(
        names,
        backward=_make_passes() if backward else None,
        functions=functions,
        meters=meters,
    )


def make_tracker(
    hook: Callbacks, everywhere: bool, backward: bool, meters: Sequence[Meter] = ()
) -> Tracker:
    """A tracker for `hook` in the running thread.

    Callbacks that no class of the hook overrides are never called: for a hook that only
    measures, no object is made for each call.

    everywhere: whether the hook is registered for all modules; it then leaves out
        modules that have a hook of the same name themselves.
    backward: whether it measures backward even if no callback asks for that.
    meters: what it reads besides the host's clock; with any, it measures backward.
    """
    measures_backward = backward or bool(meters) or _overrides(hook, _BACKWARD)
    if _overrides(hook, _FORWARD + _BACKWARD):
        from torchprof_hooks.capture.backward.node_hooks import HookedPasses

        callbacks = LinkCallbacks(hook)
        # What a callback raises ends the pass, which only hooks on nodes can do.
        passes = HookedPasses(callbacks=callbacks) if measures_backward else None
        tracker = Tracker(backward=passes, callbacks=callbacks, meters=meters)
    else:
        tracker = new_tracker(backward=measures_backward, meters=meters)
    tracker.shown_by_hooks = not everywhere
    if everywhere:
        tracker.is_left_out = lambda _, module: (
            hook.name in module_subscriptions(module)
        )
        _everywhere.add(tracker)
    return tracker


def make_function_tracker(
    hook: FunctionCallbacks,
    everywhere: bool,
    meters: Sequence[Meter] = (),
    *,
    follows_modules: bool = True,
    by_shapes: bool = False,
) -> Tracker:
    """A tracker for a hook on functions in the running thread.

    everywhere: whether the hook is registered for all functions; otherwise it is told
        only of the functions that it was put on.
    follows_modules, by_shapes: see `Tracker` and `FunctionCalls`.
    """
    from torchprof_hooks.capture.functions.function_callbacks import CalledBackFunctions
    from torchprof_hooks.capture.tracking.function_subscriptions import (
        subscriptions_of_function,
        subscriptions_of_functions_named,
    )

    def has_hook(function: Any) -> bool:
        return any(
            subscription.hook is hook
            for subscription in subscriptions_of_function(function).values()
        )

    def subscriptions_of(function: Any) -> Mapping[str, object]:
        is_name = isinstance(function, str)
        return (
            subscriptions_of_functions_named if is_name else subscriptions_of_function
        )(function)

    wants = None if everywhere else has_hook
    functions: FunctionCalls
    passes: Passes
    if _overrides(hook, _FORWARD + _BACKWARD):
        called_back = CalledBackFunctions(hook, by_shapes=by_shapes, wants=wants)
        functions, passes = called_back, called_back.passes()
        follows_modules = True  # callbacks are told the module
    else:
        functions = new_functions(by_shapes=by_shapes, wants=wants)
        passes = _make_passes()
    tracker = Tracker(
        backward=passes,
        functions=functions,
        meters=meters,
        follows_modules=everywhere and follows_modules,
    )
    if everywhere:
        functions.is_replaced = lambda function: hook.name in subscriptions_of(function)
        _everywhere.add(tracker)
    return tracker


def new_functions(
    *,
    by_shapes: bool = False,
    counts_flops: bool = False,
    wants: Callable[[Any], bool] | None = None,
) -> FunctionCalls:
    """What measures functions for a tracker without callbacks (for the options, see
    `FunctionCalls`): by operators, if all are wanted and the core hears of these."""
    from torchprof_hooks.capture.functions.function_calls import FunctionCalls
    from torchprof_hooks.capture.functions.operator_calls import OperatorCalls

    if CORE.module is None or wants is not None:
        return FunctionCalls(
            by_shapes=by_shapes, counts_flops=counts_flops, wants=wants
        )
    return OperatorCalls(by_shapes=by_shapes, counts_flops=counts_flops)


def ask_again(target: Any) -> None:
    """Have trackers find out again whether they follow `target`: a hook was put on it,
    or taken off, and may replace one that is on all modules or functions."""
    for tracker in list(_everywhere):
        if isinstance(target, torch.nn.Module):
            tracker.tree.forget(target)
        elif tracker.functions is not None:
            tracker.functions.forget(tracker)


#: Trackers of hooks on all modules, or on all functions, of their thread.
_everywhere: weakref.WeakSet[Tracker] = weakref.WeakSet()


def is_default(callback: Callback) -> Callback:
    """Marks a callback of the base class, which does nothing and need not be called."""
    callback.is_default = True  # type: ignore[attr-defined]
    return callback


def _make_passes() -> Passes:
    """What follows passes best with the core that runs, where nobody has to end a pass
    by an exception, or to walk through its graph."""
    if CORE.module is None:
        from torchprof_hooks.capture.backward.node_hooks import HookedPasses

        return HookedPasses()
    return Passes()


def _overrides(hook: object, names: tuple[str, ...]) -> bool:
    return any(not getattr(getattr(hook, name), "is_default", False) for name in names)
