"""Follows one thread through everything that is measured."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.backward.ownership import (
    FIELDS,
    Interval,
    Ownership,
)
from torchprof_hooks.capture.backward.parts import Part, Parts, are_many
from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.autograd import (
    current_graph_task,
    next_sequence_number,
)
from torchprof_hooks.capture.tracking.callbacks import LinkCallbacks
from torchprof_hooks.capture.tracking.meters.meters import Meter, Meters
from torchprof_hooks.capture.tracking.pass_lifetime import (
    begin_pass,
    begin_unseen_pass,
    drop_dead_passes,
    drop_passes_after,
    end_pass,
)
from torchprof_hooks.capture.tracking.thread_calls import ThreadCalls
from torchprof_hooks.profiles.names import OUTSIDE_NAME

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.backward_pass import Passes
    from torchprof_hooks.capture.functions.function_calls import FunctionCalls


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
        self.ownership = Ownership()
        self.forget_oldest = self.ownership.forget_oldest  # for the native core
        self.parts = Parts()
        if backward is not None and self.divides and not backward.looks_at_nodes:
            self.ties = self.ownership.ties  # records are the core's
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

    # Owners of nodes

    def keep_intervals(self, low: int, outputs: object) -> None:
        """Make a record of the intervals from number `low` on."""
        passes = self.backward
        if passes is None or not passes.divides:  # nobody asks whose a node is
            self.take_intervals(-1)
            return
        if self.site is not self.outside and self._keep_part(low, outputs):
            return
        own = self.take_intervals(low)
        if self.interval_count and self.site is self.outside:
            self.keep_loose()
        if own:
            self.ownership.add(passes.record_of(self, own, low), outputs)

    def _keep_part(self, low: int, outputs: object) -> bool:
        """Whether the call that has ended was a part of a frame. Its intervals then
        stay with the frame, which owns the nodes around them, while they are needed."""
        since, high = self._low_of_frames(), next_sequence_number()
        if since is None:
            return False
        if high != low:
            part = Part(low, high)
            is_tied = bool(self.ownership.tie(part, outputs))
            self.parts.add(part, since, self.interval_count, is_tied)
        if self.interval_count > self.parts.look_at and not self.passes:
            self.own(self.parts.living(self.take_intervals(since)))
        return True

    def _low_of_frames(self) -> int | None:
        """The number of the first node that the outermost open frame can own."""
        frames = [site for site in self.open_sites() if site.is_frame]
        return frames[-1].low if frames else None

    def open_frames(self) -> None:
        """A pass begins inside of open calls. If many calls have ended inside of these,
        they train in a loop, maybe for as long as the program: make them frames."""
        if self.passes or not are_many(self.interval_count):
            return  # a call that is recomputed in a pass soon ends
        found = [s for s in self.open_sites() if s.is_called and not s.is_frame]
        for site in found:
            self.tree.make_frame(site)
        since = self._low_of_frames()
        if found and since is not None:
            self.parts.hold(Part(found[-1].low, next_sequence_number()), since)

    def keep_loose(self) -> None:
        """Make a record of the intervals of loose calls (see `Ownership`)."""
        own = self.take_intervals(-1)
        if own and self.backward is not None:
            lowest = min(own[1::FIELDS])
            self.ownership.add_loose(self.backward.record_of(self, own, lowest))

    def keep_elsewhere(self, elsewhere: dict[int, list[int]], outputs: object) -> None:
        """Make records of the nodes that other threads have made in a pass that has
        ended. The calls that are open around the pass own all of them."""
        assert self.backward is not None  # there are passes
        around = [code for code, _, _ in self.open_intervals()]
        for thread, made in elsewhere.items():
            low, high = min(made[1::FIELDS]), max(made[2::FIELDS])
            own = [*made]
            for code in reversed(around):
                own += code, low, high
            record = self.backward.record_of(self, own, low, thread)
            self.ownership.add(record, outputs, thread)

    def is_inside_call(self) -> bool:
        """Whether a module call is open, however far out."""
        site = self.site  # by a loop: this is asked in every pass
        while site is not self.outside and not site.is_called:
            site = site.caller
        return site is not self.outside

    def open_intervals(self) -> Iterator[Interval]:
        """Intervals of open calls, which go on, outermost first."""
        high = next_sequence_number()
        for site in reversed(list(self.open_sites())):
            if site.is_called:
                yield site.code, site.low, high

    # Backward passes

    begin_unseen_pass = begin_unseen_pass
    begin_pass = begin_pass
    end_pass = end_pass

    def drop_dead_calls(self, beginning: object = None) -> None:
        """Also ends passes that an interrupt kept from being ended."""
        if self.passes or self.site is not self.outside:
            drop_dead_passes(self)
            super().drop_dead_calls(beginning)

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
            self.drop_dead_calls(optimizer)
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
            if self.site.key != id(optimizer):
                self.drop_dead_calls()
            end_ns, site = perf_counter_ns(), self.site
            if site.key == id(optimizer):
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
