"""How backward passes are followed."""

from __future__ import annotations

from torchprof_hooks.capture.backward.heard import HeardPasses
from torchprof_hooks.capture.backward.planned import PlannedPasses
from torchprof_hooks.capture.core import CORE

#: Both have one interface.
Passes = HeardPasses | PlannedPasses


def make_passes(divides: bool = True) -> Passes:
    """What follows passes with the core that runs, where nobody has to be able to end
    one by an exception, nor to walk through its graph."""
    return PlannedPasses(divides) if CORE.module is None else HeardPasses(divides)
