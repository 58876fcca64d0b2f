"""A tracker that looks at whole passes only."""

from __future__ import annotations

from torchprof_hooks.capture.backward_tracker import BackwardTracker, make_passes
from torchprof_hooks.capture.module_names import ModuleNames


class PhaseTracker(BackwardTracker):
    """Measures how long forward, backward, optimizer steps and data loading take, each
    as a whole: of modules, it is to be shown those alone that are called from outside
    any other. A backward pass belongs to nobody; autograd nodes are looked at only
    where gradients are waited for after the last one.

    All of that is done in every step, by code that the processor's caches have not kept
    since the last one: each line here is paid for.
    """

    def __init__(self, names: ModuleNames | None = None) -> None:
        super().__init__(names, make_passes(divides=False))

    def begin_recomputation(self) -> None:
        """A part of the pass, which is not divided."""

    def keep_intervals(self, low: int, outputs: object) -> None:
        """Nobody asks whose a node is."""
        self.take_intervals(-1)
