"""Backward passes: where Python enters the autograd engine, and with which arguments;
and how the native core, which the engine notifies of each node, divides a pass among
the owners of its nodes."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.kernel.attachments import Layer, Patch, leave_out_our_frame
from torchprof_hooks.kernel.core import carry_no_ended
from torchprof_hooks.kernel.interruptions import OpenCalls
from torchprof_hooks.kernel.torch_names import Function
from torchprof_hooks.kernel.torch_names.autograd import (
    NO_SEQUENCE_NUMBER,
    engine_entry,
    node_of,
    sequence_number,
)
from torchprof_hooks.kernel.torch_names.compiler import (
    is_compiled_autograd_on,
    is_tracing,
)
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.names import Phase


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
    was_left: whether it ended without notice.
    tail: name and phase of what comes after its last node, if that interrupts it.

    If its nodes have hooks:

    handles: of these hooks.
    keeps_graph: whether nodes may run again.
    open: the calls whose backward is open, outermost first.
    task: the engine's number for the pass.
    node: number of the node whose hook was called last.
    nodes_ended_ns, entered_ns: when all nodes had run (0: not known), and the time in
        interruptions by then.
    is_undivided: whether the owner of some node is not known.
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
        tail: tuple[str, Phase] | None,
    ) -> None:
        self.base = base
        self.opened_base = opened_base
        self.makes_graph = makes_graph
        self.tail = tail
        self.thread = get_ident()
        self.handles: list[Any] = []
        self.open: list[OpenBackward] = []


class Passes:
    """Has the native core divide the backward passes of a thread among the owners of
    their nodes; `HookedPasses` does it by hooks on nodes."""

    def begin(
        self, tracker: OpenCalls, started: BackwardPass, request: PassRequest
    ) -> None:
        """A pass of `tracker` is about to begin."""
        if started.opened_base:
            started.engine_site = tracker.tree.engine_site(started.base)
        waiting = None
        if started.tail is not None:
            waiting = tracker.tree.interruption_site(started.base, *started.tail)
        tracker.enter_pass(
            started,
            started.base,
            started.engine_site,
            waiting,
            opens=started.opened_base,
            makes_graph=started.makes_graph,
            names_nodes=tracker.functions is not None,
        )

    def reach_node(self, tracker: OpenCalls, running: BackwardPass) -> None:
        """Hooks of a node of the pass run, maybe before the engine notifies of the
        node: the pass goes on with the owner of that node."""
        tracker.reach_node()

    def finish(self, tracker: OpenCalls, running: BackwardPass) -> bool:
        """End the pass that began last, and went well; False, and nothing is done, if
        that is not simple."""
        return running.tail is None and tracker.finish_pass(running)

    def end(self, tracker: OpenCalls, running: BackwardPass, now_ns: int) -> int | None:
        """End the pass that began last, where `finish` has not. Returns when its tail
        began, if it has one: callbacks that others have asked for."""
        ended_ns = self.leave(tracker, running, now_ns)
        if ended_ns is None or running.failed:
            return None
        if running.tail is not None:
            return ended_ns
        engine = running.engine_site
        if engine is not None and now_ns > ended_ns:
            tracker.book((engine.code, ended_ns, now_ns))
        return None

    def leave(
        self, tracker: OpenCalls, running: BackwardPass, now_ns: int
    ) -> int | None:
        """Close what is open in the pass. Returns when its last node ended; None if
        that is not known."""
        tracker.aborted_calls += running.failed and tracker.open_backward
        tracker.abort_down_to(tracker.pass_owner or running.base, now_ns)
        return tracker.leave_pass(running, running.failed)

    def forget(self, tracker: OpenCalls, running: BackwardPass) -> None:
        """The engine no longer notifies the core of nodes of this pass."""
        tracker.drop_pass(running)


class EnginePatch(Patch):
    """Where Python enters the autograd engine; its users are trackers, or have what a
    `Tracker` has for passes.

    torch has no hook for that. So while there are users, this replaces the function
    through which Python enters the engine by one that notifies them and then does the
    same. It does not look at outputs of modules: so it finds all nodes, whatever
    outputs look like (objects of the user's own, a loss left behind as an attribute).
    """

    def __init__(self) -> None:
        super().__init__(engine_entry, self._make_entry)

    def _make_entry(self, run_backward: Function, layer: Layer) -> Function:
        def run_measured_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                is_dynamo_compiling()
                or not layer.is_on
                or is_tracing()
                or is_compiled_autograd_on()
            ):
                return run_backward(outputs, *args, **kwargs)
            begun: list[tuple[Any, int]] = []
            results: Any = None
            failed = True
            try:
                for tracker in self.users_here():
                    begun.append((tracker, len(tracker.passes)))
                    tracker.begin_pass(PassRequest(outputs, *args))
                results = run_backward(outputs, *args, **kwargs)
                failed = False
                return results
            except BaseException as error:
                leave_out_our_frame(error)
                raise
            finally:
                if begun:
                    _end(begun, results, failed)

        return run_measured_backward


def _end(begun: list[tuple[Any, int]], results: Any, failed: bool) -> None:
    """Notify each tracker that its pass is over, even if a hook of one raises."""
    tracker, passes_before = begun.pop()
    try:
        if len(tracker.passes) > passes_before:
            tracker.end_pass(results, failed)
    finally:
        if begun:
            _end(begun, results, failed)
        elif not passes_before:  # the outermost is over, for all trackers
            carry_no_ended()  # a hook may have stopped measuring in it


engine_patch: Final = EnginePatch()
