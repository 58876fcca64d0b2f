"""Makes trackers that measure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchprof_hooks.kernel.core import CORE
from torchprof_hooks.kernel.module_names import ModuleNames
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.passes import Passes
from torchprof_hooks.kernel.tracker import Tracker

if TYPE_CHECKING:
    from torchprof_hooks.kernel.node_hooks import MoveListener


def new_tracker(
    names: ModuleNames | None = None,
    *,
    backward: bool = True,
    observers: Sequence[Observer] = (),
) -> Tracker:
    """A tracker for the running thread that measures, and calls nobody back.

    backward: whether it measures backward passes.
    """
    passes = new_passes() if backward else None
    return Tracker(names, backward=passes, observers=observers)


def new_passes(callbacks: MoveListener | None = None) -> Passes:
    """What follows passes best with the core that runs. Hooks on nodes are imported
    only where they are needed.

    callbacks: notified where passes move to other owners; may end them by exceptions.
    """
    if CORE.module is None or callbacks is not None:
        from torchprof_hooks.kernel.node_hooks import HookedPasses

        return HookedPasses(callbacks=callbacks)
    return Passes()
