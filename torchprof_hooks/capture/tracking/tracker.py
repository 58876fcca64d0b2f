"""Follows one thread through everything that is measured."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.backward.backward_pass import (
    NO_REQUEST,
    NOT_PREPARED,
    REQUEST_OF_GRAPH,
    BackwardPass,
    OuterPasses,
    PassRequest,
    Preparation,
)
from torchprof_hooks.capture.backward.gradient_reduction import gradient_reduction
from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.autograd import (
    at_end_of_nodes,
    current_autograd_node,
    current_graph_task,
    passes_on_stack,
)
from torchprof_hooks.capture.torch_names.modules import is_loading_on_stack
from torchprof_hooks.capture.tracking.callbacks import LinkCallbacks
from torchprof_hooks.capture.tracking.meters import Meter, Meters
from torchprof_hooks.capture.tracking.thread_calls import ThreadCalls
from torchprof_hooks.profiles.names import BACKWARD_NAME, OUTSIDE_NAME

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.backward_pass import Passes
    from torchprof_hooks.capture.functions.function_calls import FunctionCalls


class Tracker(ThreadCalls):
    """Measures what one thread does: modules, and what it is made of otherwise.

    It is what torch tells of calls, passes and steps, and who has the others that take
    part. `make_tracker` puts one together.

    A module called while a backward pass runs is being recomputed. Recomputations are
    entries, and so is a pass, unless it runs inside of another one.

    functions, meters, callbacks: see `Cursor`.
    follows_modules: whether modules are to be shown to it.
    follows_loading: whether modules that are called while data is loaded are calls of
        their own.
    undivided_passes: how many were not, for nodes of several threads with one number.
    hears_unseen_passes: whether it is to be told of passes that are not started from
        Python. What tells of them is told of all nodes, which makes these take longer.
    has_unseen_passes: whether it was told of one.
    """

    meters: Meters | None
    callbacks: LinkCallbacks | None
    functions: FunctionCalls | None

    def __init__(
        self,
        names: ModuleNames | None = None,
        *,
        backward: Passes | None = None,
        functions: FunctionCalls | None = None,
        meters: Sequence[Meter] = (),
        callbacks: LinkCallbacks | None = None,
        follows_modules: bool = True,
    ) -> None:
        super().__init__(names, backward)
        self.functions = functions
        self.callbacks = callbacks
        self.follows_modules = follows_modules
        self.follows_loading = callbacks is not None  # who asks to be told is told
        self.undivided_passes = 0
        #: Known after the first one, if the core can begin and end them at once.
        self.outer_passes: OuterPasses | None = None
        self.hears_unseen_passes = self.divides
        self.has_unseen_passes = False
        if meters:
            self.meters = Meters(meters)
            self.meters.announce(self)
        if functions is not None:
            functions.serve(self)

    @property
    def measures_backward(self) -> bool:
        """Whether it is to be told of backward passes, and of what interrupts calls."""
        return self.backward is not None

    @property
    def follows_functions(self) -> bool:
        """Whether it is to be shown all functions."""
        return self.functions is not None

    @property
    def names_nodes(self) -> bool:
        """Whether nodes that no function is known for are functions of their own."""
        return self.functions is not None and self.functions.names_nodes

    def works_here(self) -> bool:
        """Whether the running thread works for the one that is followed: on devices,
        the engine runs backward passes in threads of its own."""
        thread = get_ident()
        if thread == self.thread or not self.passes:
            return thread == self.thread
        task = current_graph_task()
        return task != -1 and (
            self.runs_task(task)
            or any(p.thread == thread or p.task == task for p in self.passes)
        )

    # Sites that the core, or a plan, asks for

    def backward_site(self, caller: Site, code: int) -> Site:
        """See `CallTree`."""
        return self.tree.backward_site(caller, code)

    def site_of_node(self, caller: Site, name: str) -> Site:
        """See `FunctionSites`."""
        assert self.functions is not None  # names_nodes is not asked for
        return self.functions.sites.site_of_node(caller, name)

    # Backward passes

    def begin_unseen_pass(self) -> None:
        """A backward pass has begun that was not started from Python: its first node is
        about to run."""
        self.has_unseen_passes = True
        if self.passes:
            return  # it is a part of that
        request = REQUEST_OF_GRAPH if torch.is_grad_enabled() else NO_REQUEST
        self.begin_pass(request, from_python=False)
        if self.passes:
            [begun] = self.passes
            at_end_of_nodes(lambda: self._end_unseen_pass(begun))

    def _end_unseen_pass(self, begun: BackwardPass) -> None:
        if begun in self.passes:
            self.end_pass(None, failed=False)
            gradient_reduction.is_expected = False

    def begin_pass(
        self,
        request: PassRequest,
        prepared: Preparation = NOT_PREPARED,
        from_python: bool = True,
    ) -> None:
        """The engine is about to begin a backward pass."""
        if self.backward is None:
            return
        if self.garbage.newest_ns > prepared.since_ns > 0:
            prepared = prepared.without(self.garbage)
        outer = self.outer_passes
        if outer and from_python and self.site is self.outside and not self.passes:
            self._begin_at_once(outer, request.makes_graph, prepared)
            return
        self.drop_dead_calls()
        if self.site.phase != "data" or self.follows_loading:  # else all is loading
            self._begin_in_steps(request, prepared, from_python)

    def _begin_in_steps(
        self, request: PassRequest, prepared: Preparation, from_python: bool
    ) -> None:
        """Also where a core cannot do it at once."""
        assert self.backward is not None
        began_ns = prepared.until_ns or perf_counter_ns()
        entered_ns = self.entered_ns
        # What was called while it was prepared has its time already.
        prepared_ns = prepared.ns_after(self.last_booked_ns())
        found = base = self.site
        read_before_ns = found.reading_ns
        passes_before = len(self.passes)
        try:
            if found.phase != "backward" or self._have_nodes_ended():
                base = self.tree.entry_site(found, BACKWARD_NAME, "backward")
                self.open_entry(base)
            started = BackwardPass(
                base, base is not found, request.makes_graph, from_python
            )
            self.backward.begin(self, started, request)
        except BaseException:  # an interrupt: leave nothing open, and pass it on
            self._drop_passes_after(passes_before)
            self.abort_down_to(found, perf_counter_ns())
            raise
        if self.functions is not None:
            self.functions.pass_begins(started)
        if started.opened_base:
            began_ns += self.entered_ns - entered_ns  # planning has a site of its own
            found.reading_ns = read_before_ns + base.start_ns - began_ns
            if self.garbage.newest_ns > began_ns:
                self.garbage.was_no_cost(found, began_ns, base.start_ns)
            started.begin_earlier(self.backward.dates_back * prepared_ns)

    def _have_nodes_ended(self) -> bool:
        """Whether what runs is what the engine was asked to do after the last node."""
        return current_graph_task() != -1 and current_autograd_node() is None

    def _begin_at_once(
        self, outer: OuterPasses, makes_graph: bool, prepared: Preparation
    ) -> None:
        """The core does all that is to be done."""
        started = BackwardPass(outer.base, True, makes_graph)
        started.engine_site = outer.engine
        self.begin_outer_pass(started, *outer, makes_graph, *prepared)
        if self.garbage.newest_ns > prepared.until_ns:
            now_ns = perf_counter_ns()
            self.garbage.was_no_cost(self.outside, prepared.until_ns, now_ns)
        if self.functions is not None:
            self.functions.pass_begins(started)

    def _ends_at_once(self, ended: BackwardPass, outputs: object) -> bool:
        """Whether the core has done all that is to be done at the end of a pass."""
        engine = ended.engine_site
        if engine is None or gradient_reduction.is_expected:
            return False
        if self.garbage.newest_ns > engine.start_ns:  # maybe after the last node
            return False
        try:
            return self.end_outer_pass(ended, engine, outputs)
        finally:
            if ended not in self.passes and self.functions is not None:
                self.functions.pass_is_over(ended, is_last=not self.passes)

    def end_pass(self, outputs: object, failed: bool) -> None:
        """The backward pass that began last is over."""
        if not self.passes or self.backward is None:  # measuring was stopped in it
            return
        ended = self.passes[-1]
        if self.outer_passes and not failed and self._ends_at_once(ended, outputs):
            return
        if self.site.phase == "waiting" and not failed:
            began_ns = self.site.start_ns
            self.close_entry(self.site)
            self.exchanges.waited_ns += self.last_end_ns() - began_ns
        now_ns = perf_counter_ns()
        base, of_base_ns = ended.base, ended.base.reading_ns
        ended.failed = failed
        self.aborted_calls += failed and self.backward.open_calls(self, ended)
        self.fold_if_due()
        self.abort_down_to(self.backward.owner_of(self, ended), now_ns)
        try:
            self.backward.end(self, ended, now_ns)
        finally:  # a callback may raise in there, and an interrupt come before it
            self._forget_pass(ended)
            if not self.passes:
                self._all_passes_ended(failed)
            if ended.elsewhere:
                self.keep_elsewhere(ended.elsewhere, outputs)
            if ended.opened_base:  # what we do here is no part of the pass
                base.reading_ns = of_base_ns
                if not self.reads_meters and self.device is None:  # else it is timed
                    base.caller.reading_ns += perf_counter_ns() - now_ns
                self.close_entry(base, outputs, now_ns)

    def _all_passes_ended(self, failed: bool) -> None:
        assert self.backward is not None  # there were passes
        self.backward.rest()
        if gradient_reduction.is_expected and not failed:
            self.exchanges.add_pass(gradient_reduction.buckets)

    def drop_dead_calls(self, beginning: object = None) -> None:
        """Also ends passes that an interrupt kept from being ended."""
        if self.passes and get_ident() == self.thread:
            alive = passes_on_stack()
            if current_graph_task() != -1:  # those that are on no stack of Python's
                alive += sum(not running.from_python for running in self.passes)
            while len(self.passes) > alive:
                self.abort_down_to(self.passes[-1].base, self.last_stamp_ns())
                dead = self._drop_pass()
                if dead.opened_base:
                    self.abort_call(self.last_stamp_ns())
        if self.site is self.outside:
            return
        if not self.passes:
            left = [site for site in self.open_sites() if site.phase == "backward"]
            if left:
                self.abort_down_to(left[-1].caller, self.last_stamp_ns())
        super().drop_dead_calls(beginning)

    def abort_all(self, by_exception: bool) -> None:
        """Close whatever is open (see the parent class)."""
        super().abort_all(by_exception)
        self._drop_passes_after(0)
        if self.backward is not None:
            self.backward.rest()
        if self.functions is not None:
            self.functions.drop_open_calls()

    def _drop_passes_after(self, count: int) -> None:
        while len(self.passes) > count:
            self._drop_pass()

    def _drop_pass(self) -> BackwardPass:
        """The pass that began last is not heard of any more."""
        dead = self.passes[-1]
        self._forget_pass(dead)
        return dead

    def _forget_pass(self, ended: BackwardPass) -> None:
        """It began last; the core may have taken it away."""
        passes = self.passes
        if passes and passes[-1] is ended and self.backward is not None:
            self.backward.forget(self, ended)
        if passes and passes[-1] is ended:
            del passes[-1]
        if self.functions is not None:
            self.functions.pass_is_over(ended, is_last=not passes)

    def begin_recomputation(self) -> None:
        """A node asks for a tensor that is to be computed again: what is done for that
        is not the node's time, nor its own."""
        passes = self.backward
        if self.site.phase == "backward" and passes is not None and passes.divides:
            self.open_entry(self.tree.recomputation_site(self.site))

    def end_recomputation(self) -> None:
        """The tensors are there."""
        for site in self.open_sites():
            if site.is_recomputation:
                self.leave_entry(site)
                return

    # Loading data

    def is_loading(self) -> bool:
        """Whether all that is done now is loading data: transforms may be modules, and
        a data set may ask a model. It is looked up: an interrupt may have kept us from
        being told of the end."""
        if self.site.phase != "data" or self.follows_loading:
            return False
        return is_loading_on_stack()

    def looks_away_from(self, module: torch.nn.Module) -> bool:
        """Also from modules that are called to load data (see the parent class)."""
        return self.is_loading() or super().looks_away_from(module)

    def unwind_to(self, module: torch.nn.Module) -> Site:
        """See the parent class. What ends while data is loaded did not begin for us."""
        began_ns = perf_counter_ns()
        if self.is_loading():
            self.site.reading_ns += perf_counter_ns() - began_ns
            return self.outside
        return super().unwind_to(module)

    # Optimizers

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Open a step of `optimizer`."""
        if not is_dynamo_compiling() and self.works_here():
            self.drop_dead_calls(optimizer)
            if self.site.phase == "data" and not self.follows_loading:
                return
            name = type(optimizer).__name__
            self.open_entry(self.entry_site(name, "optimizer", id(optimizer)))

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Close a step of `optimizer`."""
        if not is_dynamo_compiling() and self.works_here():
            if self.site.key != id(optimizer):
                self.drop_dead_calls()
            if self.site.key == id(optimizer):
                self.close_entry(self.site)

    def begin_closure(self) -> Callable[[], object]:
        """The optimizer that steps calls the program: that is not its own time. Returns
        what is to be called at the end."""
        if not self.works_here() or self.site.phase != "optimizer":
            return lambda: None
        site = self.entry_site(OUTSIDE_NAME, "outside")
        self.open_entry(site)
        return partial(self.leave_entry, site)

    def is_in_optimizer(self) -> bool:
        """Whether an optimizer is stepping."""
        return any(site.phase == "optimizer" for site in self.open_sites())
