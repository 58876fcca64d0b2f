"""A backward pass: what was asked of the autograd engine, and how it goes; and how
passes are followed with the native core, which the engine tells of each node."""

from __future__ import annotations

import threading
from _thread import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.profiles.names import WAITING_NAME

if TYPE_CHECKING:
    from torchprof_hooks.capture.core import Cursor
    from torchprof_hooks.capture.tracking.tracker import Tracker


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


#: Requests without and with ``create_graph``, for passes whose nodes nobody needs.
NO_REQUEST: Final = PassRequest([], keeps_graph=False, makes_graph=False, stop=-1)
REQUEST_OF_GRAPH: Final = NO_REQUEST._replace(makes_graph=True)


class OpenBackward(NamedTuple):
    """A call whose backward is open.

    key: is equal for this call alone (see `Cursor.owners_of`). None: not a call, but an
        autograd node under its own name, or the engine before the first node runs.
    site: where the backward is booked.
    """

    key: object
    site: Site


class BackwardPass:
    """One run of the autograd engine.

    base: the site that the pass is booked on where no module call owns it.
    opened_base: whether the pass opened `base` itself. If not, it runs inside of
        another pass, and its work without an owner stays on the site that it found.
    open: the calls whose backward is open, outermost first, if nodes have hooks.
    engine_site: where the engine's own time is booked; None: not separately.
    task, thread: the engine's number for the pass, and where it was started.
    failed: whether it ended by an exception.
    was_left: whether it ended without telling us.
    sums_gradients: whether ``DistributedDataParallel`` is prepared for it.
    ran_nodes: whether the engine is known to have run all nodes.
    nodes_ended_ns, entered_ns: when it had run them, and the time in entries by then.
    counts_in, number: the thread whose counter of nodes was read last, and its value.
    keeps_graph: whether nodes may run again.
    node: number of the node whose hook was called last, if nodes have hooks.
    is_undivided: whether the owner of some node cannot be told.
    """

    open: list[OpenBackward]
    engine_site: Site | None = None
    counts_in: int
    number = task = node = -1
    failed = ran_nodes = is_undivided = keeps_graph = was_left = False
    nodes_ended_ns = entered_ns = 0

    def __init__(
        self,
        base: Site,
        opened_base: bool,
        makes_graph: bool,
    ) -> None:
        self.base = base
        self.opened_base = opened_base
        self.makes_graph = makes_graph
        self.sums_gradients = gradient_reduction.is_expected
        self.thread = get_ident()

    def book_tail(self, tracker: Tracker, nodes_ended_ns: int, now_ns: int) -> None:
        """Book the time after the last node of a pass on the engine: its own, and that
        of its final callbacks."""
        engine = self.engine_site
        if engine is not None and now_ns > nodes_ended_ns:
            tracker.book((engine.code, nodes_ended_ns, now_ns))


class GradientReduction(threading.local):
    """What ``DistributedDataParallel`` is about to do in a thread.

    It sums up gradients while a backward pass runs. At the end of the pass, it waits
    until that is done, in a callback of the engine's that no hook shows.

    is_expected: whether it is prepared for a backward pass that is not over yet.
    """

    is_expected = False


#: That of the running thread.
gradient_reduction = GradientReduction()


class Passes:
    """Has the core divide the backward passes of a tracker among their owners;
    `HookedPasses` does it with hooks on nodes.
    """

    #: Whether `begin` needs the nodes that a pass starts from.
    needs_roots = False

    def begin(
        self,
        tracker: Tracker,
        started: BackwardPass,
        request: PassRequest,
    ) -> None:
        """A pass of `tracker` is about to begin."""
        if started.opened_base:
            started.engine_site = tracker.tree.engine_site(started.base)
        tracker.enter_pass(
            started,
            started.base,
            started.engine_site,
            opens=started.opened_base,
            makes_graph=started.makes_graph,
            names_nodes=tracker.names_nodes,
        )

    def reach_node(self, tracker: Tracker, running: BackwardPass) -> None:
        """Hooks of a node of the pass run, maybe before the engine tells of the node:
        the pass goes on with the owner of that node."""
        tracker.reach_node()

    def owner_of(self, tracker: Cursor, running: BackwardPass) -> Site:
        """The site that the pass is working for."""
        return tracker.pass_owner or running.base

    def open_calls(self, tracker: Tracker, running: BackwardPass) -> int:
        """How many calls are open in the pass."""
        return tracker.open_backward

    def finish(self, tracker: Tracker, running: BackwardPass) -> bool:
        """End the pass that began last, and went well; False, and nothing is done, if
        that is not simple."""
        return not running.sums_gradients and tracker.finish_pass(running)

    def end(self, tracker: Tracker, running: BackwardPass, now_ns: int) -> None:
        """End the pass that began last, where `finish` has not. After its last node
        come callbacks that others have asked for, such as waiting for gradients."""
        ended_ns = tracker.leave_pass(running, running.failed)
        if ended_ns is None or running.failed:
            return
        if running.sums_gradients:
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

    def no_pass_runs(self) -> None:
        """No pass is running any more."""
