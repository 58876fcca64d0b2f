"""Backward passes that are followed by hooks on their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from time import perf_counter_ns
from typing import Any, Protocol

from torchprof_hooks.kernel.graph import reachable_nodes
from torchprof_hooks.kernel.interruptions import OpenCalls
from torchprof_hooks.kernel.passes import (
    BackwardPass,
    OpenBackward,
    Passes,
    PassRequest,
)
from torchprof_hooks.kernel.torch_names.autograd import (
    NO_SEQUENCE_NUMBER,
    at_end_of_nodes,
    current_autograd_node,
    current_graph_task,
    next_sequence_number,
)
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.names import PROFILER_NAME


class MoveListener(Protocol):
    """Is notified where a pass moves to other owners: of the calls that end there,
    innermost first, and of those that begin, outermost first."""

    def moved(self, closed: list[Site], opened: list[Site], failed: bool) -> None: ...


class HookedPasses(Passes):
    """Divides the backward passes of a tracker among their owners where the core is not
    notified of nodes, or where a callback has to be able to end a pass by an exception.

    When a pass begins, this walks its graph once, and puts a hook before each node,
    which stays until the pass ends.

    callbacks: notified where a pass moves to other owners.
    """

    def __init__(self, *, callbacks: MoveListener | None = None) -> None:
        self._callbacks = callbacks

    def begin(
        self, tracker: OpenCalls, started: BackwardPass, request: PassRequest
    ) -> None:
        found = tracker.site
        passes_before = len(tracker.passes)
        try:
            if started.opened_base:
                tracker.open_entry(started.base)
            self._put_hooks(tracker, started, request)
        except BaseException:  # an interrupt: leave nothing open, and pass it on
            self.forget(tracker, started)
            while len(tracker.passes) > passes_before:
                self.forget(tracker, tracker.passes.pop())
            tracker.abort_down_to(found, perf_counter_ns())
            raise

    def _put_hooks(
        self, tracker: OpenCalls, started: BackwardPass, request: PassRequest
    ) -> None:
        walking = tracker.interruption_site(PROFILER_NAME, "profiler")
        tracker.open_entry(walking)
        # In a method: when it ends, it lets go of the nodes, which takes time.
        self._hook_nodes(tracker, started, request)
        if tracker.site is not walking:  # the handler of a signal has ended the profile
            self.forget(tracker, started)
            return
        tracker.close_entry(walking)
        if started.handles and started.opened_base:
            _engine_begins(tracker, started)
        tracker.passes.append(started)

    def reach_node(self, tracker: OpenCalls, running: BackwardPass) -> None:
        node = current_autograd_node()
        is_numbered = node is not None and node._sequence_nr() != NO_SEQUENCE_NUMBER
        if is_numbered and tracker.site is _owner(running):
            self.on_node(tracker, None)

    def finish(self, tracker: OpenCalls, running: BackwardPass) -> bool:
        return False

    def leave(
        self, tracker: OpenCalls, running: BackwardPass, now_ns: int
    ) -> int | None:
        tracker.aborted_calls += running.failed and _open_calls(running)
        tracker.abort_down_to(_owner(running), now_ns)
        if not running.nodes_ended_ns:
            self._move(tracker, running, 0, [], now_ns)
            return None
        return running.nodes_ended_ns + tracker.entered_ns - running.entered_ns

    def forget(self, tracker: OpenCalls, running: BackwardPass) -> None:
        while running.handles:
            running.handles.pop().remove()

    def reaches(self, running: BackwardPass, nodes: Mapping[int, Any]) -> None:
        """For derived classes: the pass that begins can run these, by their numbers."""

    def _hook_nodes(
        self, tracker: OpenCalls, started: BackwardPass, request: PassRequest
    ) -> None:
        """Put a hook on each node that is to run."""
        nodes = reachable_nodes(request.roots())
        if nodes is None:
            tracker.undivided_passes += 1
            return
        started.keeps_graph = request.keeps_graph
        self.reaches(started, nodes)
        at_node, stop = partial(self.on_node, tracker), request.stop()
        for number, node in nodes.items():
            if number > stop:
                started.handles.append(node.register_prehook(at_node))

    # While a pass runs

    def on_node(self, tracker: OpenCalls, gradient: Any) -> None:
        """A node is about to run."""
        now_ns = perf_counter_ns()
        if not tracker.passes:  # the handler of a signal has ended the profile
            return
        running = tracker.passes[-1]
        if running.task == -1:
            running.task = current_graph_task()
            at_end_of_nodes(partial(self.nodes_end, tracker, running))
        if not tracker.works_here():  # the reference core follows one thread alone
            return
        node = current_autograd_node()
        if node._sequence_nr() == running.node:  # hooked twice
            return
        running.node = node._sequence_nr()
        kept, opens = _owners(tracker, running, node)
        self._move(tracker, running, kept, opens, now_ns)
        tracker.site.nodes_run += 1

    def nodes_end(self, tracker: OpenCalls, running: BackwardPass) -> None:
        """The engine has run all nodes of the pass."""
        is_last = tracker.passes and tracker.passes[-1] is running
        if not is_last or not tracker.works_here():
            return
        now_ns = perf_counter_ns()
        tracker.abort_down_to(_owner(running), now_ns)
        self._move(tracker, running, 0, [], now_ns)
        running.nodes_ended_ns, running.entered_ns = now_ns, tracker.entered_ns

    def _move(
        self,
        tracker: OpenCalls,
        running: BackwardPass,
        kept: int,
        opens: list[OpenBackward],
        now_ns: int,
    ) -> None:
        """Close all open calls but the first `kept`, and open others."""
        closed = [each.site for each in reversed(running.open[kept:])]
        opened = [each.site for each in opens]
        if not (closed or opened):
            return
        tracker.abort_down_to(_owner(running), now_ns)
        # In a pass with ``create_graph=True``, the nodes that a module's backward makes
        # belong to that module's backward in turn.
        number = next_sequence_number() if running.makes_graph else None
        for site in closed:
            tracker.book((site.code, site.start_ns, now_ns))
            if number is not None:
                tracker.own_until(site, number)
        for site in opened:
            site.start_ns = now_ns
            if number is not None:
                tracker.own_from(site, number, True)
        still_open = [*running.open[:kept], *opens]
        owner = still_open[-1].site if still_open else running.base
        # In one statement, in case of an interrupt: see `OpenCalls.abort_call`.
        running.open, tracker.site = still_open, owner
        if tracker.memory is not None or tracker.device is not None:
            tracker.owners_moved(closed, opened)
        if self._callbacks is not None:
            self._callbacks.moved(closed, opened, running.failed)


def _owners(
    tracker: OpenCalls, running: BackwardPass, node: Any
) -> tuple[int, list[OpenBackward]]:
    """How many of the open calls own the node, outermost first, and which calls inside
    of these do."""
    chain = tracker.owners_of(node._sequence_nr(), not running.keeps_graph)
    if chain is None:  # nobody knows
        tracker.undivided_passes += not running.is_undivided
        running.is_undivided, chain = True, []
    kept = 0
    for each, (key, _) in zip(running.open, chain, strict=False):
        if each.key != key:
            break
        kept += 1
    around = running.open[kept - 1].site if kept else running.base
    opens = []
    for key, code in chain[kept:]:
        around = tracker.tree.backward_site(around, code)
        opens.append(OpenBackward(key, around))
    return kept, opens


def _owner(running: BackwardPass) -> Site:
    """The site that the pass is working for."""
    return running.open[-1].site if running.open else running.base


def _open_calls(running: BackwardPass) -> int:
    """How many calls are open in the pass: before any node has run, only the engine is
    at work."""
    is_engine = running.open and running.open[0].site is running.engine_site
    return 0 if is_engine else len(running.open)


def _engine_begins(tracker: OpenCalls, started: BackwardPass) -> None:
    """Begin the time of the engine. To be called last: what we do before a pass is not
    time of the pass."""
    started.engine_site = site = tracker.tree.engine_site(started.base)
    started.open.append(OpenBackward(None, site))
    site.low = next_sequence_number()
    started.base.start_ns = site.start_ns = perf_counter_ns()
    tracker.site = site
