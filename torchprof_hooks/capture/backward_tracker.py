"""Follows one thread through forward, backward, recomputation and optimizer steps."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Iterable, Iterator
from itertools import chain
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.backward_plan import (
    Move,
    Owner,
    Plan,
    PlanCache,
    move_between,
    reachable_nodes,
    shape_of,
)
from torchprof_hooks.capture.module_names import ModuleNames
from torchprof_hooks.capture.ownership import Interval, Ownership, newest_first
from torchprof_hooks.capture.site import NO_MODULE, Site
from torchprof_hooks.capture.span_log import FOLD_AT
from torchprof_hooks.capture.torch_names import (
    NodeHookCarrier,
    current_autograd_node,
    current_graph_task,
    next_sequence_number,
)
from torchprof_hooks.capture.tracker import Tracker
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    CALLED_PHASES,
    PROFILER_NAME,
    Phase,
    optimizer_name,
)

#: Numbers of nodes of retained graphs that are remembered as hooked already. Forgetting
#: one costs a second, idle hook on the node.
HOOKED_NODES_KEPT: Final = 1 << 16


class PassRequest(NamedTuple):
    """What a backward pass is asked to do.

    roots: the nodes that it starts from.
    keeps_graph, makes_graph: ``retain_graph`` and ``create_graph``.
    stop: nodes with this number or a lower one will not run.
    """

    roots: list[Any]
    keeps_graph: bool
    makes_graph: bool
    stop: int


class BackwardPass:
    """One run of the autograd engine.

    base: the site that the pass is booked on where no module call owns it.
    opened_base: whether the pass opened `base` itself, or runs inside of another pass
        and leaves unowned work with the owner that it found.
    moves: what is planned, by the number of the node before which it takes place.
    owner: whom the pass is working for now.
    task, thread: the engine's number for the pass, and where it was started.
    failed: whether it ended by an exception.
    """

    __slots__ = (
        "base",
        "failed",
        "makes_graph",
        "moves",
        "opened_base",
        "owner",
        "task",
        "thread",
        "whole",
    )

    def __init__(self, base: Site, opened_base: bool, makes_graph: bool) -> None:
        self.base = base
        self.opened_base = opened_base
        self.makes_graph = makes_graph
        self.failed = False
        self.whole = self.owner = Owner(base, -1, None)
        self.moves: dict[int, Move] = {}
        self.thread = get_ident()
        self.task = -1

    def follow(self, plan: Plan, numbers: list[int]) -> None:
        """Take the moves of `plan`, for nodes with these numbers."""
        self.whole = self.owner = plan.whole
        self.moves = {numbers[position]: move for position, move in plan.moves}


class BackwardTracker(Tracker):
    """Measures forward, backward and recompute of every module, and optimizer steps.

    Forward is the parent class's, plus two readings of the counter of autograd nodes
    (see `ownership`). When a backward pass begins, its graph is walked once and a hook
    put in front of each node at which the pass goes over to another call's nodes; the
    engine runs nodes in descending order of their numbers, so backward is forward
    mirrored. A module called while a pass runs is being recomputed; it interrupts its
    caller, as does a pass in the middle of a forward, or an optimizer step.
    """

    tracks_backward = True

    def __init__(self, names: ModuleNames | None = None) -> None:
        super().__init__(names)
        self.ownership = Ownership()
        self.passes: list[BackwardPass] = []
        self.steps = 0
        self.boundaries = 0  # how many were met: for the estimate of our own cost
        self._intervals: list[int] = []
        self._own = self._intervals.extend
        self._hooks = NodeHookCarrier()
        self._hooked: set[int] = set()
        self._plans = PlanCache()

    # Forward. These repeat the parent's lines instead of calling them: a call more for
    # each hook would cost as much as reading the counters does.

    def forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Open the call of `module`."""
        if is_dynamo_compiling() or (
            get_ident() != self.thread and not self.works_here()
        ):
            return
        try:
            site = self.site.children[id(module)]
        except KeyError:
            if self.looks_away_from(module):
                return
            site = self.find_site(module)
        site.low = next_sequence_number()
        site.start_ns = perf_counter_ns()
        self.site = site

    def forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """Close the call of `module`."""
        if is_dynamo_compiling() or (
            get_ident() != self.thread and not self.works_here()
        ):
            return
        end_ns = perf_counter_ns()
        site = self.site
        if site.key != id(module):
            site = self.unwind_to(module)
            if site is self.outside:
                return
        self.site = site.caller
        self._append((site.code, site.start_ns, end_ns))
        high = next_sequence_number()
        if high != site.low:
            self._own((site.code, site.low, high))
        if outputs is None:
            self.count_if_aborted()
        if site.is_entry:
            self._end_entry(site, end_ns, outputs)
        if len(self._entries) > FOLD_AT:
            self.log.fold()

    def works_here(self) -> bool:
        """Whether the running thread works for the one that is followed: on devices,
        the engine runs backward passes in threads of its own."""
        thread = get_ident()
        if thread == self.thread or not self.passes:
            return thread == self.thread
        task = current_graph_task()
        return any(p.thread == thread or p.task == task != -1 for p in self.passes)

    def _call_phase(self) -> Phase:
        in_backward = self.site.phase in ("backward", "recompute")
        return "recompute" if in_backward else "forward"

    def _calls_on_stack(self) -> Iterator[Site]:
        # Backward sites have no frame of their own; what is around a pass belongs to
        # the code that started it and is looked at when the pass is over.
        floor = self.passes[-1].owner.site if self.passes else self.outside
        for site in self.open_sites():
            if site is floor:
                return
            if site.key != NO_MODULE:
                yield site

    def abort_call(self, end_ns: int) -> None:
        """Close the current call, which an exception went through."""
        site = self.site
        super().abort_call(end_ns)
        if site.is_entry:
            self._end_entry(site, end_ns, None)

    # Entries: calls that interrupt their caller instead of being a part of it

    def _open_entry(self, site: Site) -> None:
        site.low = next_sequence_number()
        site.start_ns = perf_counter_ns()
        self.site = site

    def _close_entry(self, site: Site, outputs: object = None) -> None:
        end_ns = perf_counter_ns()
        self.site = site.caller
        self._append((site.code, site.start_ns, end_ns))
        self._end_entry(site, end_ns, outputs)

    def _end_entry(self, site: Site, end_ns: int, outputs: object) -> None:
        """Give the interrupted callers their time back; keep what the entry owns."""
        interruption_ns = end_ns - site.start_ns
        for caller in self.open_sites():
            caller.start_ns += interruption_ns
        # Inside a call, the intervals stay with those of that call.
        if self._intervals and not self._is_inside_call():
            self._keep_intervals(site.low, outputs)

    def _keep_intervals(self, low: int, outputs: object) -> None:
        """Make a record of the intervals from number `low` on."""
        intervals = self._intervals
        first = len(intervals)
        while first and intervals[first - 2] >= low:
            first -= 3
        self.ownership.add(intervals[first:], outputs)
        del intervals[first:]

    def _entry_site(self, name: str, phase: Phase, key: int = NO_MODULE) -> Site:
        """The site of something that is not a module, called from the current site."""
        known = self.site.children_by_name.get((name, phase))
        if known is None:
            path = (optimizer_name(name) if phase == "optimizer" else name,)
            known = [self.new_site(self.site, path, phase)]
            self.site.children_by_name[name, phase] = known
        known[0].key = key
        return known[0]

    # Optimizers

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Open a step of `optimizer`."""
        if not is_dynamo_compiling() and self.works_here():
            self.drop_dead_calls(optimizer)
            name = type(optimizer).__name__
            self._open_entry(self._entry_site(name, "optimizer", id(optimizer)))

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Close a step of `optimizer`, and count it."""
        if not is_dynamo_compiling() and self.works_here():
            if self.site.key != id(optimizer):
                self.drop_dead_calls()
            if self.site.key == id(optimizer):
                self._close_entry(self.site)
            self.steps += 1

    # Backward passes

    def begin_pass(self, request: PassRequest) -> None:
        """A backward pass is about to begin."""
        self.drop_dead_calls()
        found = base = self.site
        try:
            if found.phase != "backward":
                base = self._entry_site(BACKWARD_NAME, "backward")
                self._open_entry(base)
            started = BackwardPass(base, base is not found, request.makes_graph)
            self._plan(started, request)
        except BaseException:  # an interrupt: leave nothing open, and pass it on
            self.abort_down_to(found, perf_counter_ns())
            raise
        self.passes.append(started)
        self._hooks.callbacks[0] = self.on_boundary

    def _plan(self, started: BackwardPass, request: PassRequest) -> None:
        planning = self._entry_site(PROFILER_NAME, "profiler")
        self._open_entry(planning)
        nodes = reachable_nodes(request.roots)
        numbers = [n for n in sorted(nodes, reverse=True) if n > request.stop]
        if numbers:
            started.follow(self._plan_for(started.base, numbers), numbers)
            for number in started.moves:
                if number not in self._hooked:
                    self._hooks.put_in_front_of(nodes[number])
            if request.keeps_graph:
                self._remember_hooked(started.moves)
        self._close_entry(planning)

    def _plan_for(self, base: Site, numbers: list[int]) -> Plan:
        records = list(self.ownership.newest_records(numbers[-1], numbers[0] + 1))
        intervals = chain.from_iterable(newest_first(r.intervals) for r in records)
        plan = Plan(base)
        if self._is_inside_call():
            plan.make(numbers, chain(self._of_open_calls(), intervals), self._inside)
            return plan
        shape = shape_of(base, numbers, records)
        known = self._plans.get(shape)
        if known is None:
            plan.make(numbers, intervals, self._inside)
            self._plans.add(shape, plan)
        return known or plan

    def _is_inside_call(self) -> bool:
        return any(site.phase in CALLED_PHASES for site in self.open_sites())

    def _of_open_calls(self) -> Iterator[Interval]:
        """Intervals of open calls, and of those that ended inside; newest first."""
        high = next_sequence_number()
        for site in reversed(list(self.open_sites())):
            if site.phase in CALLED_PHASES:
                yield site.code, site.low, high
        yield from newest_first(self._intervals)

    def _remember_hooked(self, numbers: Iterable[int]) -> None:
        if len(self._hooked) > HOOKED_NODES_KEPT:
            self._hooked.clear()
        self._hooked.update(numbers)

    def on_boundary(self, gradient: Any) -> None:
        """A node at which the owner changes is about to run."""
        if is_dynamo_compiling():
            return
        now_ns = perf_counter_ns()
        running = self.passes[-1]
        move = running.moves.pop(current_autograd_node()._sequence_nr(), None)
        if move is None:  # hooked by an earlier pass over this graph
            return
        if self.site is not running.owner.site:
            self.abort_down_to(running.owner.site, now_ns)
        if move.before is not running.owner:
            move = move_between(running.owner, move.owner)
        if running.task == -1:
            running.task = current_graph_task()
        self.boundaries += 1
        self._make_move(move, running, now_ns)

    def _make_move(self, move: Move, running: BackwardPass, now_ns: int) -> None:
        for site in move.closes:
            self._append((site.code, site.start_ns, now_ns))
        for site in move.opens:
            site.start_ns = now_ns
        running.owner = move.owner
        self.site = move.owner.site
        if running.makes_graph:
            self._own_made_nodes(move)

    def _own_made_nodes(self, move: Move) -> None:
        """In a pass that makes a graph of its own (``create_graph=True``), the nodes
        that a module's backward makes belong to that module's backward in turn."""
        number = next_sequence_number()
        for site in move.closes:
            if number != site.low:
                self._own((site.code, site.low, number))
        for site in move.opens:
            site.low = number

    def _inside(self, caller: Site, code: int) -> Site:
        site = caller.backward.get(code)
        if site is None:
            forward = self.sites[code]
            site = self.new_site(caller, forward.path, "backward")
            site.module = forward.module  # but no key: no forward ends here
            caller.backward[code] = site
        return site

    def end_pass(self, outputs: object, failed: bool) -> None:
        """The backward pass that began last is over."""
        if not self.passes:  # measuring was stopped in the middle of it
            return
        now_ns = perf_counter_ns()
        ended = self.passes.pop()
        ended.failed = failed
        if failed:
            self.aborted_calls += ended.owner.depth
        if not self.passes:
            self._hooks.callbacks.clear()
        if len(self._entries) > FOLD_AT:
            self.log.fold()
        self.abort_down_to(ended.owner.site, now_ns)
        try:
            self._make_move(move_between(ended.owner, ended.whole), ended, now_ns)
        finally:  # a callback may raise in there
            if ended.opened_base:
                self._close_entry(ended.base, outputs)

    def abort_all(self, by_exception: bool) -> None:
        """Close whatever is open (see the parent class)."""
        super().abort_all(by_exception)
        self.passes.clear()
        self._hooks.callbacks.clear()
