"""A tracker that looks at whole passes only."""

from __future__ import annotations

from time import perf_counter_ns

from torchprof_hooks.capture.backward_pass import BackwardPass, PassRequest
from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.profiles.names import BACKWARD_NAME


class PhaseTracker(BackwardTracker):
    """Measures how long forward, backward, optimizer steps and data loading take, each
    as a whole: of modules, it is to be shown those alone that are called from outside
    any other. It looks at no autograd node, so a backward pass belongs to nobody.

    All of that is done in every step, by code that the processor's caches have not kept
    since the last one: each line here is paid for.
    """

    divides_passes = False

    def begin_pass(self, request: PassRequest) -> None:
        """A backward pass is about to begin."""
        if self.site is not self.outside:
            self.drop_dead_calls()
        is_first = self.site.phase != "backward"
        base = self.entry_site(BACKWARD_NAME, "backward") if is_first else self.site
        if is_first:
            self.open_entry(base)
        self.passes.append(BackwardPass(base, is_first, request.makes_graph))

    def end_pass(self, outputs: object, failed: bool) -> None:
        """The backward pass that began last is over."""
        if not self.passes:
            return
        ended = self.passes.pop()
        self.aborted_calls += failed
        base = ended.base
        is_open = self.site is base or self.returns_to(base, perf_counter_ns())
        if is_open and ended.opened_base:
            self.close_entry(base, outputs)

    def _keep_intervals(self, low: int, outputs: object) -> None:
        self._intervals.clear()
