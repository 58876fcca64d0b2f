"""Follows one thread through forward, backward, recomputation and optimizer steps."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from time import perf_counter_ns
from typing import Any, Final

import torch

from torchprof_hooks.capture.backward_pass import BackwardPass, PassRequest
from torchprof_hooks.capture.backward_plan import (
    Move,
    Plan,
    PlanCache,
    move_between,
    reachable_nodes,
    shape_of,
)
from torchprof_hooks.capture.core import CORE
from torchprof_hooks.capture.gradient_reduction import gradient_reduction
from torchprof_hooks.capture.module_names import ModuleNames
from torchprof_hooks.capture.ownership import newest_first
from torchprof_hooks.capture.owning_tracker import OwningTracker
from torchprof_hooks.capture.site import NO_MODULE, Site
from torchprof_hooks.capture.torch_names.autograd import (
    NodeHookCarrier,
    NodePreHook,
    at_end_of_nodes,
    current_autograd_node,
    current_graph_task,
    may_run_elsewhere,
    next_sequence_number,
    passes_on_stack,
)
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    PROFILER_NAME,
    WAITING_NAME,
    Phase,
)

#: By what the site of a recomputation is known.
_RECOMPUTATION: Final[tuple[str, Phase]] = ("", "recompute")
#: Numbers of nodes of retained graphs that are remembered as hooked already. Forgetting
#: one costs a second, idle hook on the node.
HOOKED_NODES_KEPT: Final = 1 << 16


class BackwardTracker(OwningTracker):
    """Measures forward, backward and recompute of every module, and optimizer steps.

    The native core is told by the engine of each node. With the Python core, when a
    backward pass begins, its graph is walked once and a hook put in front of each node
    at which the pass goes over to another call's nodes; the engine runs nodes in
    descending order of their numbers, so backward is forward mirrored.

    A module called while a pass runs is being recomputed. Recomputations are entries,
    and so is a pass, unless it runs inside of another one.
    """

    #: Whether the core is told of nodes; else passes are planned.
    hears_nodes = CORE.module is not None

    #: Whether the pass that begins is to be divided among the calls that its nodes
    #: belong to, or its end to be told from that of its nodes.
    looks_at_nodes: bool | property = True

    def __init__(self, names: ModuleNames | None = None) -> None:
        super().__init__(names)
        self.undivided_passes = 0  # for nodes of several threads with one number
        self._hooks: NodePreHook = NodeHookCarrier()
        self._hooked: set[int] = set()
        self._plans = PlanCache()
        self._name_node: Callable[[Site, str], Site] | None = None  # see `Plan`

    def works_here(self) -> bool:
        """Whether the running thread works for the one that is followed: on devices,
        the engine runs backward passes in threads of its own."""
        thread = get_ident()
        if thread == self.thread or not self.passes:
            return thread == self.thread
        task = current_graph_task()
        return self.runs_task(task) or any(
            p.thread == thread or p.task == task != -1 for p in self.passes
        )

    def _call_phase(self) -> Phase:
        in_backward = self.site.phase in ("backward", "recompute")
        return "recompute" if in_backward else "forward"

    def _calls_on_stack(self) -> Iterator[Site]:
        # Backward sites have no frame of their own; what is around a pass belongs to
        # the code that started it and is looked at when the pass is over.
        floor = self._owner_of(self.passes[-1]) if self.passes else self.outside
        for site in self.open_sites():
            if site is floor:
                return
            if site.key != NO_MODULE:
                yield site

    def drop_dead_calls(self, beginning: object = None) -> None:
        """Also ends passes that an interrupt kept from being ended."""
        if self.passes and get_ident() == self.thread:
            alive = passes_on_stack()
            while len(self.passes) > alive:
                self.abort_down_to(self.passes[-1].base, self._last_stamp())
                dead = self._drop_pass()
                if dead.opened_base:
                    self.abort_call(self._last_stamp())
        if not self.passes:
            left = [site for site in self.open_sites() if site.phase == "backward"]
            if left:
                self.abort_down_to(left[-1].caller, self._last_stamp())
        super().drop_dead_calls(beginning)

    def pass_is_over(self, ended: BackwardPass) -> None:
        """`ended` will not be heard of again."""

    def graph_is_known(self, nodes: Mapping[int, Any]) -> None:
        """A pass is about to begin that can run `nodes`, by their numbers."""

    def begin_pass(self, request: PassRequest) -> None:
        """A backward pass is about to begin."""
        self.drop_dead_calls()
        if self.site.phase == "data" and not self.follows_loading:
            return  # all that is done there is loading
        found = base = self.site
        try:
            if found.phase != "backward":
                base = self.entry_site(BACKWARD_NAME, "backward")
                self.open_entry(base)
            started = BackwardPass(base, base is not found, request.makes_graph)
            if self.hears_nodes:
                self._enter(started)
            else:
                self._plan(started, request)
        except BaseException:  # an interrupt: leave nothing open, and pass it on
            self.abort_down_to(found, perf_counter_ns())
            raise
        self.passes.append(started)
        if not self.hears_nodes:
            self._hooks.callbacks[0] = self.on_boundary

    def _enter(self, started: BackwardPass) -> None:
        calls = None
        if self.is_inside_call():
            as_they_ended = reversed([*self.intervals_of_open_calls()])
            calls = [*chain.from_iterable(as_they_ended)]
        elif not self.passes:
            self._keep_loose()
        names_nodes = self._name_node is not None
        self.enter_pass(started.base, True, started.makes_graph, names_nodes, calls)

    def _record_of(self, intervals: list[int], low: int) -> Any:
        """See the parent class."""
        if self.hears_nodes:
            return self.add_record(intervals, low)
        return super()._record_of(intervals, low)

    def _owner_of(self, running: BackwardPass) -> Site:
        """Whom the pass that began last is working for."""
        return self.pass_owner or running.owner.site

    def _drop_pass(self) -> BackwardPass:
        """The pass that began last is not heard of any more."""
        dead = self.passes.pop()
        if self.hears_nodes:
            self.drop_pass()
        self.pass_is_over(dead)
        return dead

    def site_of_node(self, caller: Site, name: str) -> Site:
        """The site of a node that no function is known for."""
        raise NotImplementedError  # names_nodes is not asked for

    def _plan(self, started: BackwardPass, request: PassRequest) -> None:
        planning = self.entry_site(PROFILER_NAME, "profiler")
        self.open_entry(planning)
        self._hook_moves(started, request)  # and let go of the nodes, which takes time
        self.close_entry(planning)

    def _hook_moves(self, started: BackwardPass, request: PassRequest) -> None:
        nodes = reachable_nodes(request.roots)
        if nodes is None:
            self.undivided_passes += 1
            nodes = {}
        self.graph_is_known(nodes)
        numbers = sorted(nodes, reverse=True)
        if request.stop >= 0:
            numbers = [number for number in numbers if number > request.stop]
        if numbers:
            started.follow(self._plan_for(started.base, numbers, nodes), numbers)
            hooked = set(started.moves)
            if may_run_elsewhere(nodes[numbers[0]]):
                hooked.add(numbers[0])  # tells that thread apart, for `works_here`
            unhooked = hooked - self._hooked
            self._hooks.put_in_front_of([nodes[number] for number in unhooked])
            if request.keeps_graph:
                self._remember_hooked(hooked)

    def _plan_for(
        self, base: Site, numbers: list[int], nodes: Mapping[int, Any]
    ) -> Plan:
        if not self.passes and not self.is_inside_call():
            self._keep_loose()
        records = list(self.ownership.newest_records(numbers[-1], numbers[0] + 1))
        intervals = chain.from_iterable(newest_first(r.intervals) for r in records)
        plan = Plan(base, self._name_node)
        if self.is_inside_call():
            open_intervals = chain(self.intervals_of_open_calls(), intervals)
            plan.make(numbers, nodes, open_intervals, self.backward_site)
            return plan
        shape = shape_of(base, numbers, records)
        for known in self._plans.get(shape):
            if known.fits(numbers, nodes):
                return known
        plan.make(numbers, nodes, intervals, self.backward_site)
        self._plans.add(shape, plan)
        return plan

    def _remember_hooked(self, numbers: Iterable[int]) -> None:
        if len(self._hooked) > HOOKED_NODES_KEPT:
            self._hooked.clear()
        self._hooked.update(numbers)

    def on_boundary(self, gradient: Any) -> None:
        """A node at which the owner changes is about to run."""
        now_ns = perf_counter_ns()
        running = self.passes[-1]
        if running.task == -1:
            running.task = current_graph_task()
            at_end_of_nodes(partial(self.nodes_end, running))
        move = running.moves.pop(current_autograd_node()._sequence_nr(), None)
        if move is None:  # hooked by an earlier pass over this graph, or the first one
            return
        if self.site is not running.owner.site:
            self.abort_down_to(running.owner.site, now_ns)
        if move.before is not running.owner:
            move = move_between(running.owner, move.owner)
        self._make_move(move, running, now_ns)

    def nodes_end(self, running: BackwardPass) -> None:
        """The engine has run all nodes of the pass. What comes now is what others have
        asked to be done at its end, such as waiting for gradients."""
        if not self.passes or self.passes[-1] is not running:
            return
        running.ran_nodes = True
        now_ns = perf_counter_ns()
        if self.site is not running.owner.site:
            self.abort_down_to(running.owner.site, now_ns)
        self._make_move(move_between(running.owner, running.whole), running, now_ns)
        if gradient_reduction.is_expected:
            self.open_entry(self.entry_site(WAITING_NAME, "waiting"))

    def _make_move(self, move: Move, running: BackwardPass, now_ns: int) -> None:
        for site in move.closes:
            self._append((site.code, site.start_ns, now_ns))
        for site in move.opens:
            site.start_ns = now_ns
        owner = move.owner
        running.owner, self.site = owner, owner.site  # at once: see `_book_aborted`
        owner.site.arrivals += 1
        if running.makes_graph:
            self._own_made_nodes(move)

    def _book_aborted(self, site: Site, end_ns: int) -> None:
        # An interrupt may have come in the middle of a move, after it was booked.
        if site.phase != "backward" or site.is_entry or not self.is_booked(site):
            super()._book_aborted(site, end_ns)

    def _own_made_nodes(self, move: Move) -> None:
        """In a pass that makes a graph of its own (``create_graph=True``), the nodes
        that a module's backward makes belong to that module's backward in turn."""
        number = next_sequence_number()
        for site in move.closes:
            if number != site.low:
                self._own((site.code, site.low, number))
        for site in move.opens:
            site.low = number

    def backward_site(self, caller: Site, code: int) -> Site:
        """The site of the backward of the call at a forward site (its code), inside of
        another backward site."""
        site = caller.backward.get(code)
        if site is None:
            forward = self.sites[code]
            path, function = forward.path, forward.function
            site = self.new_site(caller, path, "backward", function=function)
            site.module = forward.module  # but no key: no forward ends here
            site.is_hidden, site.is_region = forward.is_hidden, forward.is_region
            if forward.phase != "backward":
                site.described = forward.described
            caller.backward[code] = site
        return site

    # Recomputation

    def begin_recomputation(self) -> None:
        """A node asks for a tensor that is to be computed again: what is done for that
        is not the node's time, nor its own. Whose it is shows when a module is called
        in there: that of the module around it, or of that module, if it is an outermost
        one. If none is called, it is the recompute of the node's owner."""
        asking = self.site
        if asking.phase != "backward":
            return
        known = asking.children_by_name.get(_RECOMPUTATION)
        if known is None:
            path = asking.enclosing.path
            site = self.new_site(asking, path, "recompute")
            site.is_recomputation = True
            site.is_counted = False
            known = asking.children_by_name[_RECOMPUTATION] = [site]
        self.open_entry(known[0])

    def end_recomputation(self) -> None:
        """The tensors are there."""
        for site in self.open_sites():
            if site.is_recomputation:
                if self.returns_to(site, perf_counter_ns()):
                    self.close_entry(site)
                return

    def find_site(self, module: torch.nn.Module) -> Site:
        """See the parent class."""
        caller, site = self.site, super().find_site(module)
        if caller.is_recomputation and site.caller is caller:
            caller.path = site.path[:-1] or site.path
        return site

    def end_pass(self, outputs: object, failed: bool) -> None:
        """The backward pass that began last is over."""
        if not self.passes:  # measuring was stopped in the middle of it
            return
        if self.site.phase == "waiting" and not failed:
            self.close_entry(self.site)
        now_ns = perf_counter_ns()
        ended = self.passes[-1]
        ended.failed = failed
        if failed:
            self.aborted_calls += self.open_backward or ended.owner.depth
        self.fold_if_due()
        self.abort_down_to(self._owner_of(ended), now_ns)
        try:
            if self.hears_nodes:
                self._leave(failed)
            elif not ended.ran_nodes:
                self._make_move(move_between(ended.owner, ended.whole), ended, now_ns)
        finally:  # a callback may raise in there
            self._pass_ended(ended, outputs)

    def _leave(self, failed: bool) -> None:
        """What comes after the last node is what others have asked to be done at the
        end of the pass, such as waiting for gradients."""
        ended_ns = self.leave_pass(failed)
        if gradient_reduction.is_expected and ended_ns is not None and not failed:
            waiting = self.entry_site(WAITING_NAME, "waiting")
            self.open_entry(waiting)
            waiting.start_ns = ended_ns
            self.close_entry(waiting)

    def _pass_ended(self, ended: BackwardPass, outputs: object) -> None:
        self.passes.pop()
        self.pass_is_over(ended)
        if not self.passes:
            self._hooks.callbacks.clear()
            gradient_reduction.is_expected = False
        if ended.opened_base:
            self.close_entry(ended.base, outputs)

    def abort_all(self, by_exception: bool) -> None:
        """Close whatever is open (see the parent class)."""
        super().abort_all(by_exception)
        while self.passes:
            self._drop_pass()
        self._hooks.callbacks.clear()
