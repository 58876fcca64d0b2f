"""Follows one thread through everything that is measured."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.torch_names.autograd import current_graph_task
from torchprof_hooks.capture.tracking.callbacks import LinkCallbacks
from torchprof_hooks.capture.tracking.meters.meters import Meter, Meters
from torchprof_hooks.capture.tracking.pass_lifetime import (
    begin_pass,
    begin_unseen_pass,
    drop_left_passes,
    drop_passes_after,
    end_pass,
)
from torchprof_hooks.capture.tracking.thread_calls import ThreadCalls
from torchprof_hooks.profiles.names import OUTSIDE_NAME

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.backward_pass import Passes
    from torchprof_hooks.capture.functions.function_calls import FunctionCalls
    from torchprof_hooks.capture.record.site import Site


class Tracker(ThreadCalls):
    """Measures what one thread does: calls of modules, and what interrupts them.

    What is attached to torch tells it of calls, passes and steps, and it holds all
    other objects that take part in measuring. `make_tracker` puts one together.

    A module called while a backward pass runs is being recomputed. Recomputations are
    entries.

    functions, meters, callbacks: see `Cursor`.
    follows_modules: whether modules are to be shown to it.
    names_nodes: whether nodes that no function is known for are functions of their own.
    undivided_passes: how many passes were not divided among their owners, because nodes
        of several threads had the same number.
    hears_unseen_passes: whether it is to be told of passes that are not started from
        Python. That takes a callback at each node, which slows nodes down.
    has_unseen_passes: whether it was told of such a pass.
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
        self.follows_loading = callbacks is not None  # they are told of all calls
        self.functions = functions
        self.callbacks = callbacks
        self.follows_modules = follows_modules
        self.names_nodes = functions is not None and functions.follows_all
        self.undivided_passes = 0
        #: Where passes that begin outside of everything are booked, and what the engine
        #: does itself in them, if that is told apart: set by the first, if the core can
        #: begin and end such at once.
        self.outer_sites: tuple[Site, Site | None] | None = None
        self.hears_unseen_passes = self.divides
        self.has_unseen_passes = False
        if meters:
            self.meters = Meters(meters)
            self.meters.announce(self)
        # Sites that the core, or a pass with hooks, asks for:
        self.backward_site = self.tree.backward_site
        if functions is not None:
            functions.serve(self)
            self.site_of_node = functions.sites.site_of_node

    def works_in_pass(self) -> bool:
        """Whether the running thread runs a pass of the one that is followed: on
        devices, the engine runs them in threads of its own."""
        thread, task = get_ident(), current_graph_task()
        return task != -1 and (
            self.runs_task(task)
            or any(p.thread == thread or p.task == task for p in self.passes)
        )

    # Backward passes

    begin_unseen_pass = begin_unseen_pass
    begin_pass = begin_pass
    end_pass = end_pass

    def close_left_entries(self) -> None:
        """Also ends passes that were left by an interrupt."""
        drop_left_passes(self)
        super().close_left_entries()

    def abort_all(self, by_exception: bool) -> None:
        """Close whatever is open (see the parent class)."""
        super().abort_all(by_exception)
        drop_passes_after(self, 0)
        if self.backward is not None:
            self.backward.rest()
        if self.functions is not None:
            self.functions.drop_open_calls()

    def begin_recomputation(self) -> None:
        """A node asks for a tensor that is to be computed again: what that takes is
        not the time of the node."""
        if self.site.phase == "backward" and self.divides:
            self.open_entry(self.tree.recomputation_site(self.site))

    def end_recomputation(self) -> None:
        """The tensors that a node asked for are there."""
        for site in self.open_sites():
            if site.is_recomputation:
                self.leave_entry(site)
                return

    # Optimizers

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Open a step of `optimizer`."""
        if not is_dynamo_compiling() and self.works_here():
            began_ns = perf_counter_ns()
            around = self.site
            if around.phase == "data" and not self.follows_loading:
                return
            read_before_ns = around.reading_ns
            site = self.tree.entry_site(
                around, type(optimizer).__name__, "optimizer", id(optimizer)
            )
            self.open_entry(site)
            around.reading_ns = read_before_ns + site.start_ns - began_ns
            self.garbage.was_no_cost(around, began_ns, site.start_ns)

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Close a step of `optimizer`."""
        if not is_dynamo_compiling() and self.works_here():
            end_ns, site = perf_counter_ns(), self.site
            if site.key != id(optimizer):
                site = self.unwind_to(optimizer)
            if site is not self.outside:
                around, read_before_ns = site.caller, site.caller.reading_ns
                self.close_entry(site, None, end_ns)
                now_ns = perf_counter_ns()
                around.reading_ns = read_before_ns + now_ns - end_ns
                self.garbage.was_no_cost(around, end_ns, now_ns)

    def begin_closure(self) -> Callable[[], object]:
        """The optimizer that steps calls its closure, which is code of the program, and
        not the optimizer's time. Returns what is to be called at the end."""
        if not self.works_here() or self.site.phase != "optimizer":
            return lambda: None
        site = self.entry_site(OUTSIDE_NAME, "outside")
        self.open_entry(site)
        return partial(self.leave_entry, site)

    def is_in_optimizer(self) -> bool:
        """Whether an optimizer is stepping."""
        return any(site.phase == "optimizer" for site in self.open_sites())
