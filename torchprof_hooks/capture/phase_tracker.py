"""A tracker that looks at whole passes only."""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import Any

from torchprof_hooks.capture.backward_pass import BackwardPass, PassRequest
from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.gradient_reduction import gradient_reduction
from torchprof_hooks.capture.torch_names.autograd import (
    at_end_of_nodes,
    current_graph_task,
)
from torchprof_hooks.profiles.names import BACKWARD_NAME


class PhaseTracker(BackwardTracker):
    """Measures how long forward, backward, optimizer steps and data loading take, each
    as a whole: of modules, it is to be shown those alone that are called from outside
    any other. A backward pass belongs to nobody; autograd nodes are looked at only
    where gradients are waited for after the last one.

    All of that is done in every step, by code that the processor's caches have not kept
    since the last one: each line here is paid for.
    """

    @property
    def looks_at_nodes(self) -> bool:  # type: ignore[override]
        """Whether gradients are waited for at the end of the pass that begins."""
        return gradient_reduction.is_expected

    def begin_pass(self, request: PassRequest) -> None:
        """A backward pass is about to begin."""
        if self.site is not self.outside:
            self.drop_dead_calls()
        if self.site.phase == "data":
            return  # all that is done there is loading
        is_first = self.site.phase != "backward"
        base = self.entry_site(BACKWARD_NAME, "backward") if is_first else self.site
        if is_first:
            self.open_entry(base)
        self.passes.append(BackwardPass(base, is_first, request.makes_graph))
        if self.hears_nodes:
            if gradient_reduction.is_expected:
                self.enter_pass(base, False)
        elif request.roots:
            self._hooks.callbacks[0] = self.on_boundary
            self._hooks.put_in_front_of(request.roots)

    def begin_recomputation(self) -> None:
        """A part of the pass, which is not divided."""

    def on_boundary(self, gradient: Any) -> None:
        """The first node of a pass is about to run."""
        if self.passes[-1].task == -1:
            self.passes[-1].task = current_graph_task()
            at_end_of_nodes(partial(self.nodes_end, self.passes[-1]))

    def end_pass(self, outputs: object, failed: bool) -> None:
        """The backward pass that began last is over."""
        if not self.passes:
            return
        if self.site.phase == "waiting" and not failed:
            self.close_entry(self.site)
        if self.hears_nodes:
            self._leave(failed)
        ended = self.passes.pop()
        if not self.passes:
            self._hooks.callbacks.clear()
            gradient_reduction.is_expected = False
        self.aborted_calls += failed
        base = ended.base
        is_open = self.site is base or self.returns_to(base, perf_counter_ns())
        if is_open and ended.opened_base:
            self.close_entry(base, outputs)

    def keep_intervals(self, low: int, outputs: object) -> None:
        """Nobody asks whose a node is."""
        self.take_intervals(-1)
