"""Puts trackers together: the only place that knows all parts that one can have.

Code that follows functions, or hooks nodes, is imported only when it is needed: it is
a fifth of all that a profile of modules needs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from torchprof_hooks.instruments.memory.meter import Meter
from torchprof_hooks.kernel.callbacks import Callbacks, LinkCallbacks
from torchprof_hooks.kernel.core import CORE
from torchprof_hooks.kernel.module_names import ModuleNames
from torchprof_hooks.kernel.passes import Passes
from torchprof_hooks.kernel.subscriptions import module_subscriptions
from torchprof_hooks.kernel.tracker import Tracker

if TYPE_CHECKING:
    from torchprof_hooks.instruments.functions.operators import OperatorCalls

Callback = TypeVar("Callback", bound=Callable[..., Any])

_FORWARD = ("forward_preprocess", "forward_postprocess")
_BACKWARD = ("backward_preprocess", "backward_postprocess")


def new_tracker(
    names: ModuleNames | None = None,
    *,
    backward: bool = True,
    functions: OperatorCalls | None = None,
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
        from torchprof_hooks.kernel.reference.node_hooks import HookedPasses

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


def _make_passes() -> Passes:
    """What follows passes best with the core that runs, where nobody has to end a pass
    by an exception, or to walk through its graph."""
    if CORE.module is None:
        from torchprof_hooks.kernel.reference.node_hooks import HookedPasses

        return HookedPasses()
    return Passes()


def _overrides(hook: object, names: tuple[str, ...]) -> bool:
    return any(not getattr(getattr(hook, name), "is_default", False) for name in names)
