"""A tracker that looks at whole passes only."""

from __future__ import annotations

from torchprof_hooks.capture.backward_pass import BackwardPass, PassRequest
from torchprof_hooks.capture.backward_tracker import BackwardTracker


class PhaseTracker(BackwardTracker):
    """Measures how long forward, backward, optimizer steps and data loading take, each
    as a whole: of modules, it is to be shown those alone that are called from outside
    any other. It looks at no autograd node, so a backward pass belongs to nobody."""

    def _plan(self, started: BackwardPass, request: PassRequest) -> None:
        """Leave the pass undivided."""

    def _keep_intervals(self, low: int, outputs: object) -> None:
        self._intervals.clear()
