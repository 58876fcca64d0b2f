"""Backward passes that are followed by hooks on their nodes."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Mapping
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

from torchprof_hooks.capture.backward.backward_pass import (
    BackwardPass,
    OpenBackward,
    Passes,
    PassRequest,
)
from torchprof_hooks.capture.backward.graph import reachable_nodes
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.autograd import (
    NO_SEQUENCE_NUMBER,
    NodePreHook,
    at_end_of_nodes,
    current_autograd_node,
    current_graph_task,
    next_sequence_number,
)
from torchprof_hooks.profiles.names import PROFILER_NAME, WAITING_NAME

if TYPE_CHECKING:
    from torchprof_hooks.capture.core import Cursor
    from torchprof_hooks.capture.tracking.tracker import Tracker

#: Numbers of nodes of retained graphs that are remembered as hooked already. Forgetting
#: one costs a second, idle hook on the node.
HOOKED_NODES_KEPT: Final = 1 << 16


class MoveListener(Protocol):
    """Is told where a pass moves to other owners: of the calls that end there,
    innermost first, and of those that begin, outermost first."""

    def moved(self, closed: list[Site], opened: list[Site], failed: bool) -> None: ...


class HookedPasses(Passes):
    """Divides the backward passes of a tracker among their owners where the core is not
    told of nodes, or where a callback has to be able to end a pass by an exception.

    When a pass begins, this walks its graph once, and puts a hook before each node.

    callbacks: told where a pass moves to other owners.
    """

    def __init__(
        self,
        *,
        callbacks: MoveListener | None = None,
    ) -> None:
        self._callbacks = callbacks
        self._hook = NodePreHook()
        self._hooked: set[int] = set()

    needs_roots = True

    def begin(
        self,
        tracker: Tracker,
        started: BackwardPass,
        request: PassRequest,
    ) -> None:
        found = tracker.site
        passes_before = len(tracker.passes)
        try:
            if started.opened_base:
                tracker.open_entry(started.base)
            self._put_hooks(tracker, started, request)
        except BaseException:  # an interrupt: leave nothing open, and pass it on
            tracker.drop_passes_after(passes_before)
            tracker.abort_down_to(found, perf_counter_ns())
            raise

    def _put_hooks(
        self, tracker: Tracker, started: BackwardPass, request: PassRequest
    ) -> None:
        started.open, started.keeps_graph = [], request.keeps_graph
        started.counts_in = started.thread
        walking = tracker.entry_site(PROFILER_NAME, "profiler")
        tracker.open_entry(walking)
        # In a method: when it ends, it lets go of the nodes, which takes time.
        is_hooked = self._hook_nodes(tracker, request)
        if tracker.site is not walking:
            return  # the handler of a signal has ended the profile
        tracker.close_entry(walking)
        if is_hooked and started.opened_base:
            _engine_begins(tracker, started)
        tracker.passes.append(started)
        self._hook.callback = partial(self.on_node, tracker)

    def reach_node(self, tracker: Tracker, running: BackwardPass) -> None:
        node = current_autograd_node()
        is_numbered = node is not None and node._sequence_nr() != NO_SEQUENCE_NUMBER
        is_owner_here = tracker.site is self.owner_of(tracker, running)
        if is_numbered and is_owner_here:
            self.on_node(tracker, None)

    def owner_of(self, tracker: Cursor, running: BackwardPass) -> Site:
        return running.open[-1].site if running.open else running.base

    def open_calls(self, tracker: Tracker, running: BackwardPass) -> int:
        return len(running.open) * _has_begun(running)

    def finish(self, tracker: Tracker, running: BackwardPass) -> bool:
        return False

    def end(self, tracker: Tracker, running: BackwardPass, now_ns: int) -> None:
        if not running.ran_nodes:
            self._move(tracker, running, 0, [], now_ns)
        elif not (running.failed or running.sums_gradients):
            since_ns = tracker.entered_ns - running.entered_ns
            running.book_tail(tracker, running.nodes_ended_ns + since_ns, now_ns)

    def reaches(self, nodes: Mapping[int, Any]) -> None:
        """For derived classes: the pass that begins can run these, by their numbers."""

    def forget(self, tracker: Tracker, running: BackwardPass) -> None:
        """There is nothing to forget."""

    def no_pass_runs(self) -> None:
        self._hook.callback = None

    def _hook_nodes(self, tracker: Tracker, request: PassRequest) -> bool:
        """Put a hook on each node that is to run. Returns whether there is any."""
        nodes = reachable_nodes(request.roots)
        if nodes is None:
            tracker.undivided_passes += 1
            return False
        self.reaches(nodes)
        to_run = {n: node for n, node in nodes.items() if n > request.stop}
        for number, node in to_run.items():
            if number not in self._hooked:
                node.register_prehook(self._hook)
        if request.keeps_graph:
            if len(self._hooked) > HOOKED_NODES_KEPT:
                self._hooked.clear()
            self._hooked.update(to_run)
        return bool(to_run)

    # While a pass runs

    def on_node(self, tracker: Tracker, gradient: Any) -> None:
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
        tracker.site.heard += 1

    def nodes_end(self, tracker: Tracker, running: BackwardPass) -> None:
        """The engine has run all nodes of the pass. Now come callbacks that others have
        asked for, such as waiting for gradients."""
        if not tracker.passes or tracker.passes[-1] is not running:
            return
        if not tracker.works_here():
            return
        running.ran_nodes = True
        now_ns = perf_counter_ns()
        tracker.abort_down_to(self.owner_of(tracker, running), now_ns)
        self._move(tracker, running, 0, [], now_ns)
        running.entered_ns = tracker.entered_ns
        running.nodes_ended_ns = now_ns
        if running.sums_gradients:
            tracker.open_entry(tracker.entry_site(WAITING_NAME, "waiting"))

    def _move(
        self,
        tracker: Tracker,
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
        tracker.abort_down_to(self.owner_of(tracker, running), now_ns)
        for site in closed:
            tracker.book((site.code, site.start_ns, now_ns))
        for site in opened:
            site.start_ns = now_ns
        if running.makes_graph:
            _own_made_nodes(tracker, running, closed, opened)
        still_open = [*running.open[:kept], *opens]
        owner = still_open[-1].site if still_open else running.base
        # In one statement, in case of an interrupt: see `OpenCalls.abort_call`.
        running.open, tracker.site = still_open, owner
        if tracker.meters:
            tracker.owners_moved(closed, opened)
        if self._callbacks is not None:
            self._callbacks.moved(closed, opened, running.failed)


def _owners(
    tracker: Tracker, running: BackwardPass, node: Any
) -> tuple[int, list[OpenBackward]]:
    """How many of the open calls own the node, outermost first, and which calls inside
    of these do."""
    chain = tracker.owners_of(node._sequence_nr(), not running.keeps_graph)
    if chain is None:  # nobody can tell
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


def _has_begun(running: BackwardPass) -> bool:
    """Whether any node has run: before, only the engine is at work."""
    return not running.open or running.open[0].site is not running.engine_site


def _engine_begins(tracker: Tracker, started: BackwardPass) -> None:
    """Begin the time of the engine. To be called last: what we do before a pass is not
    time of the pass."""
    started.engine_site = site = tracker.tree.engine_site(started.base)
    started.open.append(OpenBackward(None, site))
    site.low = started.number = next_sequence_number()
    started.base.start_ns = site.start_ns = perf_counter_ns()
    tracker.site = site


def _own_made_nodes(
    tracker: Tracker, running: BackwardPass, closed: list[Site], opened: list[Site]
) -> None:
    """In a pass with ``create_graph=True``, the nodes that a module's backward makes
    belong to that module's backward in turn.

    Each thread counts its own nodes, and the engine may run parts of a pass in other
    threads than the followed one. But both numbers of an owner must come from one
    thread.
    """
    here, number = get_ident(), next_sequence_number()
    if here != running.counts_in:  # owners end there, and begin anew here
        running.counts_in = here
        owners = [e.site for e in running.open if e.site is not running.engine_site]
        for site in reversed(owners):
            tracker.own_until(site, running.number)
        for site in owners:
            tracker.own_from(site, number, True)
    running.number = number
    for site in closed:
        tracker.own_until(site, number)
    for site in opened:
        tracker.own_from(site, number, True)
