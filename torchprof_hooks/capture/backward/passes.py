"""How backward passes are followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchprof_hooks.capture.core import CORE

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.heard import HeardPasses
    from torchprof_hooks.capture.backward.planned import PlannedPasses

    #: Both have one interface.
    Passes = HeardPasses | PlannedPasses


def make_passes(divides: bool = True) -> Passes:
    """What follows passes with the core that runs, where nobody has to be able to end
    one by an exception, nor to walk through its graph."""
    if CORE.module is None:
        from torchprof_hooks.capture.backward.planned import PlannedPasses

        return PlannedPasses(divides)
    from torchprof_hooks.capture.backward.heard import HeardPasses

    return HeardPasses(divides)
