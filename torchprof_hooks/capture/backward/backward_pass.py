"""A backward pass: what was asked of the autograd engine, and how it goes; and how
passes are followed with the native core, which the engine tells of each node."""

from __future__ import annotations

import threading
from _thread import get_ident
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torchprof_hooks.capture.record.call_tree import Site
from torchprof_hooks.capture.torch_names.autograd import (
    NO_SEQUENCE_NUMBER,
    node_of,
    sequence_number,
)
from torchprof_hooks.profiles.names import WAITING_NAME

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker


class PassRequest:
    """What a backward pass is asked to do: the engine's arguments.

    keeps_graph, makes_graph: ``retain_graph`` and ``create_graph``.
    """

    def __init__(
        self,
        outputs: Iterable[Any],
        gradients: Any = (),
        keeps_graph: Any = False,
        makes_graph: Any = False,
        inputs: Iterable[Any] = (),
        *_: Any,
    ) -> None:
        self._outputs, self._inputs = outputs, inputs
        self.keeps_graph, self.makes_graph = bool(keeps_graph), bool(makes_graph)

    def roots(self) -> list[Any]:
        """The nodes that it starts from."""
        return [node for node in map(_node, self._outputs) if node is not None]

    def stop(self) -> int:
        """Nodes with this number or a lower one will not run."""
        numbers = [
            NO_SEQUENCE_NUMBER if node is None else sequence_number(node)
            for node in map(_node, self._inputs)
        ]
        # The gradient of the oldest input is only handed over: its node does not run,
        # nor do older ones. A leaf has no number, and may be behind any node.
        return min(numbers) if numbers and NO_SEQUENCE_NUMBER not in numbers else -1


def _node(edge: Any) -> Any:
    """The node of a tensor (None of a leaf) or of a ``GradientEdge``."""
    return node_of(edge) if isinstance(edge, torch.Tensor) else edge.node


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
    engine_site: where the engine's own time is booked; None: not separately.
    thread: where it was started.
    failed: whether it ended by an exception.
    was_left: whether it ended without telling us.
    sums_gradients: whether ``DistributedDataParallel`` is prepared for it.

    If its nodes have hooks:

    handles: of these hooks.
    keeps_graph: whether nodes may run again.
    open: the calls whose backward is open, outermost first.
    task: the engine's number for the pass.
    node: number of the node whose hook was called last.
    nodes_ended_ns, entered_ns: when all nodes had run (0: not known), and the time in
        entries by then.
    is_undivided: whether the owner of some node cannot be told.
    """

    engine_site: Site | None = None
    task = node = -1
    failed = is_undivided = keeps_graph = was_left = False
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
        self.handles: list[Any] = []
        self.open: list[OpenBackward] = []


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

    def begin(
        self, tracker: Tracker, started: BackwardPass, request: PassRequest
    ) -> None:
        """A pass of `tracker` is about to begin."""
        if started.opened_base:
            started.engine_site = tracker.tree.engine_site(started.base)
        waiting = None
        if started.sums_gradients:
            waiting = tracker.tree.entry_site(started.base, WAITING_NAME, "waiting")
        tracker.enter_pass(
            started,
            started.base,
            started.engine_site,
            waiting,
            opens=started.opened_base,
            makes_graph=started.makes_graph,
            names_nodes=tracker.names_nodes,
        )

    def reach_node(self, tracker: Tracker, running: BackwardPass) -> None:
        """Hooks of a node of the pass run, maybe before the engine tells of the node:
        the pass goes on with the owner of that node."""
        tracker.reach_node()

    def finish(self, tracker: Tracker, running: BackwardPass) -> bool:
        """End the pass that began last, and went well; False, and nothing is done, if
        that is not simple."""
        return not running.sums_gradients and tracker.finish_pass(running)

    def end(self, tracker: Tracker, running: BackwardPass, now_ns: int) -> None:
        """End the pass that began last, where `finish` has not. After its last node
        come callbacks that others have asked for, such as waiting for gradients."""
        ended_ns = self.leave(tracker, running, now_ns)
        if ended_ns is None or running.failed:
            return
        engine = running.engine_site
        if running.sums_gradients:
            waiting = tracker.entry_site(WAITING_NAME, "waiting")
            tracker.open_entry(waiting)
            waiting.start_ns = ended_ns
            tracker.close_entry(waiting, None, now_ns)
            tracker.exchanges.waited_ns += now_ns - ended_ns
        elif engine is not None and now_ns > ended_ns:
            tracker.book((engine.code, ended_ns, now_ns))

    def leave(self, tracker: Tracker, running: BackwardPass, now_ns: int) -> int | None:
        """Close what is open in the pass. Returns when its last node ended; None if
        that is not known."""
        tracker.aborted_calls += running.failed and tracker.open_backward
        tracker.abort_down_to(tracker.pass_owner or running.base, now_ns)
        return tracker.leave_pass(running, running.failed)

    def forget(self, tracker: Tracker, running: BackwardPass) -> None:
        """The pass is not heard of any more."""
        tracker.drop_pass(running)
