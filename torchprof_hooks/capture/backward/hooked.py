"""Backward passes that are followed by hooks on their nodes."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

from torchprof_hooks.capture.backward.backward_pass import (
    BackwardPass,
    Passes,
    PassRequest,
    gradient_reduction,
)
from torchprof_hooks.capture.backward.owners import (
    Move,
    Owner,
    move_between,
    owners_of,
    reachable_nodes,
)
from torchprof_hooks.capture.backward.ownership import Interval, Record, newest_first
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.autograd import (
    NodeHookCarrier,
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
    """Is told where a pass goes over to other owners: of calls that end there,
    innermost first, and of those that begin, outermost first."""

    def moved(self, closed: list[Site], opened: list[Site], failed: bool) -> None: ...


class HookedPasses(Passes):
    """Divides the backward passes of a tracker among their owners where the core is not
    told of nodes, or where a callback has to be able to end a pass by an exception.

    When a pass begins, its graph is walked once, and a hook put in front of each node.

    callbacks: told where a pass goes over to other owners.
    gives_gradients: called at a node in place of the function that is due there, with
        that function and the gradients of all outputs of the node.
    """

    def __init__(
        self,
        divides: bool = True,
        *,
        callbacks: MoveListener | None = None,
        gives_gradients: Callable[[Callable[[Any], None], Any], None] | None = None,
    ) -> None:
        super().__init__(divides)
        self._callbacks = callbacks
        self._gives_gradients = gives_gradients
        self._hooks = NodeHookCarrier() if gives_gradients is None else NodePreHook()
        self._hooked: set[int] = set()

    @property
    def looks_at_nodes(self) -> bool:  # type: ignore[override]
        """Whether a pass is described by the nodes that it starts from."""
        return self.divides or gradient_reduction.is_expected

    def begin(
        self, tracker: Tracker, started: BackwardPass, request: PassRequest
    ) -> None:
        whole = Owner(started.base, -1, None, tracker.names_nodes)
        started.whole = started.owner = whole
        started.owners, started.elsewhere = {}, {}
        started.counts_in = started.thread
        if self.divides:
            read_before_ns = started.base.reading_ns
            walking = tracker.entry_site(PROFILER_NAME, "profiler")
            tracker.open_entry(walking)
            # In a method: when it ends, it lets go of the nodes, which takes time.
            self._hook_nodes(tracker, started, request)
            if tracker.site is not walking:
                return  # the handler of a signal has ended the profile
            tracker.close_entry(walking)
            if started.owners and started.opened_base:
                started.base.reading_ns = read_before_ns  # walking came before
                _engine_begins(tracker, started)
        elif request.roots:
            self._hooks.put_in_front_of(request.roots)
        tracker.passes.append(started)
        at_node: Callable[[Any], None] = partial(self.on_node, tracker)
        if self._gives_gradients is not None:
            at_node = partial(self._gives_gradients, at_node)
        self._hooks.callbacks[0] = at_node

    def engine_ends(self, tracker: Tracker, running: BackwardPass) -> None:
        if running.owner is running.engine:
            self._make_last_move(tracker, running, perf_counter_ns())

    def owner_of(self, tracker: Cursor, running: BackwardPass) -> Site:
        return running.owner.site

    def open_calls(self, tracker: Tracker, running: BackwardPass) -> int:
        has_begun = running.owner is not running.engine
        return has_begun * running.owner.depth if self.divides else 1

    def end(self, tracker: Tracker, running: BackwardPass, now_ns: int) -> None:
        if self.divides and not running.ran_nodes:
            self._make_last_move(tracker, running, now_ns)
        elif not (running.failed or gradient_reduction.is_expected):
            since_ns = tracker.entered_ns - running.entered_ns
            running.book_tail(tracker, running.nodes_ended_ns + since_ns, now_ns)

    def reaches(self, nodes: Mapping[int, Any]) -> None:
        """For derived classes: the pass that begins can run these, by their numbers."""

    def forget(self, tracker: Tracker, running: BackwardPass) -> None:
        """There is nothing to forget."""

    def rest(self) -> None:
        self._hooks.callbacks.clear()

    def record_of(
        self, tracker: Cursor, intervals: list[int], low: int, thread: int = 0
    ) -> Record:
        return Record(intervals, low)

    # The walk

    def _hook_nodes(
        self, tracker: Tracker, started: BackwardPass, request: PassRequest
    ) -> None:
        """Find the owners of the nodes that are to run, and put a hook on each."""
        nodes = reachable_nodes(request.roots)
        if nodes is None:
            tracker.undivided_passes += 1
            return
        self.reaches(nodes)
        numbers = sorted(nodes, reverse=True)
        if request.stop >= 0:
            numbers = [number for number in numbers if number > request.stop]
        intervals = self._intervals(tracker, numbers, nodes) if numbers else None
        if intervals is None:
            return
        started.owners = owners_of(started.whole, numbers, nodes, intervals, tracker)
        unhooked = [nodes[number] for number in numbers if number not in self._hooked]
        self._hooks.put_in_front_of(unhooked)
        if request.keeps_graph:
            if len(self._hooked) > HOOKED_NODES_KEPT:
                self._hooked.clear()
            self._hooked.update(numbers)

    def _intervals(
        self, tracker: Tracker, numbers: list[int], nodes: Mapping[int, Any]
    ) -> Iterator[Interval] | None:
        """Those of the calls that may own these nodes, newest first; None if nobody can
        tell whose they are."""
        is_inside_call = tracker.is_inside_call()
        if not tracker.passes and not is_inside_call:
            tracker.keep_loose()
        newest, oldest = numbers[0], numbers[-1]
        records = list(tracker.ownership.newest_records(oldest, newest + 1))
        if tracker.ownership.elsewhere:
            opened = (low for _, low, _ in tracker.open_intervals())
            since = min(opened, default=newest + 1)
            found = tracker.ownership.with_elsewhere(records, nodes, numbers, since)
            if found is None:
                tracker.undivided_passes += 1
                return None
            records = found
        intervals = chain.from_iterable(newest_first(r.intervals) for r in records)
        if not is_inside_call:
            return intervals
        tracker.open_frames()
        inside = newest_first(tracker.intervals)  # of calls that have ended there
        return chain(tracker.open_intervals(), inside, intervals)

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
        owner = running.owners.pop(current_autograd_node()._sequence_nr(), None)
        if owner is None:  # hooked by an earlier pass over this graph
            if running.owner is not running.engine:
                return
            owner = running.whole
        if owner is not running.owner:
            if tracker.site is not running.owner.site:
                tracker.abort_down_to(running.owner.site, now_ns)
            self._go_over(tracker, running, owner, now_ns)
        owner.site.heard += 1

    def nodes_end(self, tracker: Tracker, running: BackwardPass) -> None:
        """The engine has run all nodes of the pass. What comes now is what others have
        asked to be done at its end, such as waiting for gradients."""
        if not tracker.passes or tracker.passes[-1] is not running:
            return
        running.ran_nodes = True
        now_ns = perf_counter_ns()
        if tracker.site is not running.owner.site:
            tracker.abort_down_to(running.owner.site, now_ns)
        self._make_last_move(tracker, running, now_ns)
        running.entered_ns = tracker.entered_ns
        running.nodes_ended_ns = perf_counter_ns() if tracker.reads_meters else now_ns
        if gradient_reduction.is_expected:
            tracker.open_entry(tracker.entry_site(WAITING_NAME, "waiting"))

    def _make_last_move(
        self, tracker: Tracker, running: BackwardPass, now_ns: int
    ) -> None:
        if running.owner is not running.whole:
            self._go_over(tracker, running, running.whole, now_ns)

    def _go_over(
        self, tracker: Tracker, running: BackwardPass, owner: Owner, now_ns: int
    ) -> None:
        before, move = running.owner, move_between(running.owner, owner)
        for site in move.closes:
            tracker.book((site.code, site.start_ns, now_ns))
        for site in move.opens:
            site.start_ns = now_ns
        # At once: see `ThreadCalls.abort_call`.
        running.owner, tracker.site = owner, owner.site
        if running.makes_graph:
            _own_made_nodes(tracker, running, before, move)
        if tracker.reads_meters:
            tracker.meters.moved(move.closes, move.opens)  # type: ignore[union-attr]
        if self._callbacks is not None:
            if tracker.meters is not None:
                tracker.meters.pass_moved(move.closes, move.opens)
            self._callbacks.moved(move.closes, move.opens, running.failed)


def _engine_begins(tracker: Tracker, started: BackwardPass) -> None:
    """Begin the time of the engine. This comes last: what we do before a pass is not to
    be a part of it."""
    started.engine_site = site = tracker.tree.engine_site(started.base)
    started.owner = started.engine = Owner(site, -1, started.whole)
    site.low = started.number = next_sequence_number()
    started.base.start_ns = site.start_ns = perf_counter_ns()
    tracker.site = site


def _own_made_nodes(
    tracker: Tracker, running: BackwardPass, before: Owner, move: Move
) -> None:
    """In a pass with ``create_graph=True``, the nodes that a module's backward makes
    belong to that module's backward in turn.

    Each thread counts its own nodes, and the engine runs parts of a pass in others than
    the one that is followed: an interval has both its numbers from one thread.
    """
    here, number = get_ident(), next_sequence_number()
    if here != running.counts_in:  # open intervals end there, and begin anew here
        _own(tracker, running, _open_sites(before))
        running.counts_in = here
        for site in _open_sites(running.owner):
            site.low = number
    running.number = number
    _own(tracker, running, move.closes)
    for site in move.opens:
        site.low = number


def _own(tracker: Tracker, running: BackwardPass, sites: Iterable[Site]) -> None:
    """End the intervals of calls, innermost first, at the number that was read last."""
    thread, high = running.counts_in, running.number
    for site in sites:
        if site.low == high:
            continue
        if thread == tracker.thread:
            tracker.own((site.code, site.low, high))
        else:
            elsewhere = tracker.passes[0].elsewhere
            assert elsewhere is not None  # of passes that are hooked
            elsewhere.setdefault(thread, []).extend((site.code, site.low, high))


def _open_sites(owner: Owner) -> Iterator[Site]:
    """The sites of open calls, innermost first, without that of the pass itself."""
    while owner.around is not None:
        yield owner.site
        owner = owner.around
