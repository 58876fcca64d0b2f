"""Backward passes of which the core hears: the engine tells it of each node."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from torchprof_hooks.capture.backward.backward_pass import (
    BackwardPass,
    OuterPasses,
    PassRequest,
    gradient_reduction,
)
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.profiles.names import WAITING_NAME

if TYPE_CHECKING:
    from torchprof_hooks.capture.core import Cursor
    from torchprof_hooks.capture.tracking.tracker import Tracker


class HeardPasses:
    """Lets the core divide the backward passes of a tracker among their owners.

    divides: whether nodes are booked on their owners. If not, they are looked at only
        to tell the end of the last one from that of the pass.
    """

    #: Nobody walks through the graph.
    looks_at_nodes = False
    dates_back = True  # see `PlannedPasses`

    def __init__(self, divides: bool = True) -> None:
        self.divides = divides

    def begin(
        self, tracker: Tracker, started: BackwardPass, request: PassRequest
    ) -> None:
        """A pass of `tracker` is about to begin."""
        if not self.divides:
            if gradient_reduction.is_expected:
                tracker.enter_pass(started.base, False, started=started)
            else:
                tracker.passes.append(started)
            return
        calls = None
        if tracker.is_inside_call():
            tracker.open_frames()
            as_they_end = reversed([*tracker.open_intervals()])
            calls = [*chain.from_iterable(as_they_end)]
        elif not tracker.passes:
            tracker.keep_loose()
        # Passes that Python has not started are heard of late: at their first node.
        if started.opened_base and started.from_python:
            started.engine_site = engine = tracker.tree.engine_site(started.base)
            if started.base.caller is tracker.outside:
                names_nodes = tracker.names_nodes
                tracker.outer_passes = OuterPasses(started.base, engine, names_nodes)
        tracker.enter_pass(
            started.base,
            True,
            started.makes_graph,
            tracker.names_nodes,
            calls,
            engine=started.engine_site,
            started=started,
        )

    def engine_ends(self, tracker: Tracker, running: BackwardPass) -> None:
        """A node of the pass is about to run: if none has, the engine's time ends."""
        tracker.engine_ends()

    def owner_of(self, tracker: Cursor, running: BackwardPass) -> Site:
        """The site that the pass is working for."""
        return tracker.pass_owner or running.base

    def open_calls(self, tracker: Tracker, running: BackwardPass) -> int:
        """How many calls are open in the pass."""
        return tracker.open_backward if self.divides else 1

    def end(self, tracker: Tracker, running: BackwardPass, now_ns: int) -> None:
        """The pass that began last is over. What comes after its last node is what
        others have asked to be done then, such as waiting for gradients."""
        ended_ns = tracker.leave_pass(running, running.failed)
        if ended_ns is None or running.failed:
            return
        if gradient_reduction.is_expected:
            waiting = tracker.entry_site(WAITING_NAME, "waiting")
            tracker.open_entry(waiting)
            waiting.start_ns = ended_ns
            tracker.close_entry(waiting, None, now_ns)
            tracker.exchanges.waited_ns += now_ns - ended_ns
        else:
            running.book_tail(tracker, ended_ns, now_ns)

    def forget(self, tracker: Tracker, running: BackwardPass) -> None:
        """The pass that began last is not heard of any more."""
        tracker.drop_pass(running)

    def rest(self) -> None:
        """No pass is running any more."""

    def record_of(
        self, tracker: Cursor, intervals: list[int], low: int, thread: int = 0
    ) -> Any:
        """The record of intervals from number `low` on.

        thread: the one that has made the nodes, if that is not the running one.
        """
        return tracker.add_record(intervals, low, thread)
