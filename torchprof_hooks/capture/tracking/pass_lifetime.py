"""How backward passes begin and end, at once or in steps, and what becomes of those
that did not end. The functions that are not private are methods of `Tracker`.

A pass is an entry, unless it runs inside of another one.
"""

from __future__ import annotations

from _thread import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from torchprof_hooks.capture.backward.backward_pass import (
    NO_REQUEST,
    REQUEST_OF_GRAPH,
    BackwardPass,
    PassRequest,
    gradient_reduction,
)
from torchprof_hooks.capture.torch_names.autograd import (
    at_end_of_nodes,
    current_autograd_node,
    current_graph_task,
)
from torchprof_hooks.profiles.names import BACKWARD_NAME

if TYPE_CHECKING:
    from torchprof_hooks.capture.record.site import Site
    from torchprof_hooks.capture.tracking.tracker import Tracker


def begin_unseen_pass(self: Tracker) -> None:
    """A backward pass has begun that was not started from Python: its first node is
    about to run."""
    self.has_unseen_passes = True
    if self.passes:
        return  # it is a part of the pass that runs
    request = REQUEST_OF_GRAPH if torch.is_grad_enabled() else NO_REQUEST
    self.begin_pass(request, from_python=False)
    if self.passes:
        [begun] = self.passes
        at_end_of_nodes(lambda: _end_unseen_pass(self, begun))


def _end_unseen_pass(self: Tracker, begun: BackwardPass) -> None:
    if begun in self.passes:
        self.end_pass(None, failed=False)
        gradient_reduction.is_expected = False


def begin_pass(
    self: Tracker,
    request: PassRequest,
    began_ns: int = 0,
    from_python: bool = True,
) -> None:
    """The engine is about to begin a backward pass.

    began_ns: when the engine took over; 0: now.
    """
    if self.backward is None:
        return
    outer = self.outer_sites
    # What waits for gradients is told apart from nodes: they have to be heard of.
    is_told = self.divides or not gradient_reduction.is_expected
    is_outermost = self.site is self.outside and not self.passes
    if outer and from_python and is_outermost and is_told:
        _begin_at_once(self, *outer, request.makes_graph, began_ns)
        return
    drop_left_passes(self)
    if self.site.phase != "data" or self.follows_loading:  # else it is loading
        _begin_in_steps(self, request, began_ns or perf_counter_ns(), from_python)


def _begin_at_once(
    self: Tracker,
    base: Site,
    engine: Site | None,
    makes_graph: bool,
    began_ns: int,
) -> None:
    """Have the core do all that is to be done, in one call."""
    started = BackwardPass(base, True, makes_graph)
    started.engine_site = engine
    self.begin_outer_pass(
        started, base, engine, self.names_nodes, makes_graph, began_ns
    )
    if self.garbage.newest_ns > began_ns:
        self.garbage.was_no_cost(self.outside, began_ns, perf_counter_ns())
    if self.functions is not None:
        self.functions.pass_begins(started)


def _begin_in_steps(
    self: Tracker,
    request: PassRequest,
    began_ns: int,
    from_python: bool,
) -> None:
    """The general way, for passes that the core cannot begin in one call."""
    assert self.backward is not None
    entered_ns = self.entered_ns
    found = base = self.site
    read_before_ns = found.reading_ns
    passes_before = len(self.passes)
    try:
        if found.phase != "backward" or _have_nodes_ended():
            base = self.tree.entry_site(found, BACKWARD_NAME, "backward")
            self.open_entry(base)
        started = BackwardPass(
            base, base is not found, request.makes_graph, from_python
        )
        self.backward.begin(self, started, request)
    except BaseException:  # an interrupt: leave nothing open, and pass it on
        drop_passes_after(self, passes_before)
        self.abort_down_to(found, perf_counter_ns())
        raise
    if self.functions is not None:
        self.functions.pass_begins(started)
    if started.opened_base:
        began_ns += self.entered_ns - entered_ns  # the walk has a site of its own
        found.reading_ns = read_before_ns + base.start_ns - began_ns
        if self.garbage.newest_ns > began_ns:
            self.garbage.was_no_cost(found, began_ns, base.start_ns)


def _have_nodes_ended() -> bool:
    """Whether a pass is past its last node, and the engine runs its final callbacks."""
    return current_graph_task() != -1 and current_autograd_node() is None


def end_pass(self: Tracker, outputs: object, failed: bool) -> None:
    """The backward pass that began last is over."""
    passes = [*self.passes]  # the handler of a signal may stop measuring
    if not passes or self.backward is None:
        return
    ended = passes[-1]
    if self.outer_sites and not failed and _ends_at_once(self, ended, outputs):
        return
    if self.site.phase == "waiting" and not failed:
        began_ns = self.site.start_ns
        self.close_entry(self.site)
        ended_ns = self.last_booked_ns() or perf_counter_ns()
        self.exchanges.waited_ns += ended_ns - began_ns
    now_ns = perf_counter_ns()
    base, of_base_ns = ended.base, ended.base.reading_ns
    ended.failed = failed
    self.aborted_calls += failed and self.backward.open_calls(self, ended)
    self.fold_if_due()
    self.abort_down_to(self.backward.owner_of(self, ended), now_ns)
    try:
        self.backward.end(self, ended, now_ns)
    finally:  # a callback may raise in there, and an interrupt come before it
        _forget_pass(self, ended)
        if not self.passes:
            _all_passes_ended(self, failed)
        if ended.opened_base and not ended.was_left:  # what we do is no part of it
            base.reading_ns = of_base_ns
            if not self.reads_meters and self.device is None:  # else meters add it
                base.caller.reading_ns += perf_counter_ns() - now_ns
            self.close_entry(base, outputs, now_ns)


def _ends_at_once(self: Tracker, ended: BackwardPass, outputs: object) -> bool:
    """Whether the core has done all that is to be done at the end of a pass."""
    engine = ended.engine_site
    if gradient_reduction.is_expected:
        return False
    if engine is None:
        if self.divides:
            return False
    elif self.garbage.newest_ns > engine.start_ns:  # maybe after the last node
        return False
    try:
        return self.end_outer_pass(ended, engine, outputs)
    finally:
        if ended not in self.passes and self.functions is not None:
            self.functions.pass_is_over(ended, is_last=not self.passes)


def _all_passes_ended(self: Tracker, failed: bool) -> None:
    assert self.backward is not None  # there were passes
    self.backward.rest()
    if gradient_reduction.is_expected and not failed:
        self.exchanges.add_pass(gradient_reduction.buckets)


def drop_left_passes(self: Tracker) -> None:
    """End passes that are not over, although the engine runs none in this thread: an
    interrupt has left them, or an exception, if they were not started from Python."""
    if current_graph_task() != -1 or get_ident() != self.thread:
        return
    if self.passes and self.site is self.passes[-1].engine_site:
        return  # it is about to begin, and the handler of a signal runs
    while self.passes:
        left = self.passes[-1]
        left.was_left = True
        self.abort_down_to(left.base, self.last_stamp_ns())
        _forget_pass(self, left)
    open_ones = [site for site in self.open_sites() if site.phase == "backward"]
    if open_ones:
        self.abort_down_to(open_ones[-1].caller, self.last_stamp_ns())


def drop_passes_after(self: Tracker, count: int) -> None:
    """Forget all passes but the first `count`."""
    while len(self.passes) > count:
        _forget_pass(self, self.passes[-1])


def _forget_pass(self: Tracker, ended: BackwardPass) -> None:
    """Forget the pass that began last; the core may have removed it already."""
    passes = self.passes
    if passes and passes[-1] is ended and self.backward is not None:
        self.backward.forget(self, ended)
    if passes and passes[-1] is ended:
        del passes[-1]
    if self.functions is not None:
        self.functions.pass_is_over(ended, is_last=not passes)
