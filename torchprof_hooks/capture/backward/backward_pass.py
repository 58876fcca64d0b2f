"""One run of the autograd engine, as asked for and as it goes."""

from __future__ import annotations

from _thread import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from torch.overrides import TorchFunctionMode

from torchprof_hooks.capture.backward.plan import Move, Owner
from torchprof_hooks.capture.record.exchanges import GradientBuckets
from torchprof_hooks.capture.record.site import Site

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.heard import HeardPasses
    from torchprof_hooks.capture.backward.planned import PlannedPasses
    from torchprof_hooks.capture.tracking.tracker import Tracker

    #: What follows passes. Both have one interface.
    Passes: TypeAlias = HeardPasses | PlannedPasses


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


#: Requests for passes, without and with ``create_graph``, whose nodes nobody looks at.
NO_REQUEST: Final = PassRequest([], keeps_graph=False, makes_graph=False, stop=-1)
REQUEST_OF_GRAPH: Final = NO_REQUEST._replace(makes_graph=True)


class OuterPasses(NamedTuple):
    """How passes are followed that begin outside of everything, as most do.

    base, engine: where passes, and what the engine does itself, are booked.
    names_nodes: whether nodes without a function are functions of their own.
    """

    base: Site
    engine: Site
    names_nodes: bool


class BackwardPass:
    """One run of the autograd engine.

    base: the site that the pass is booked on where no module call owns it.
    opened_base: whether the pass opened `base` itself, or runs inside of another pass
        and leaves unowned work with the owner that it found.
    moves: planned moves, by the number of the node before which each takes place.
    owner: what the pass is working for now.
    engine, engine_site: the owner until the first node runs, and where what the engine
        does itself is booked, if that is told apart.
    task, thread: the engine's number for the pass, and where it was started.
    failed: whether it ended by an exception.
    from_python: whether it was started from Python.
    ran_nodes: whether the engine is known to have run all nodes.
    nodes_ended_ns, entered_ns: when it had run them, and the time in entries by then.
    elsewhere: intervals of the nodes that other threads than the followed one have made
        in this pass and in passes inside of it, by thread: each numbers its own nodes.
        The native core gives them when the pass has ended.
    counts_in, number: the thread whose counter of nodes was read last, and its value.
    resumed: the mode that was put back in place for as long as the pass runs.
    """

    owner: Owner
    whole: Owner
    engine: Owner | None = None
    engine_site: Site | None = None
    moves: dict[int, Move]
    elsewhere: dict[int, list[int]] | None = None
    counts_in: int
    number = task = -1
    failed = ran_nodes = False
    nodes_ended_ns = entered_ns = 0
    resumed: TorchFunctionMode | None = None

    def __init__(
        self,
        base: Site,
        opened_base: bool,
        makes_graph: bool,
        from_python: bool = True,
    ) -> None:
        self.base = base
        self.opened_base = opened_base
        self.makes_graph = makes_graph
        self.from_python = from_python
        self.thread = get_ident()

    def book_tail(self, tracker: Tracker, nodes_ended_ns: int, now_ns: int) -> None:
        """Book what comes after the last node of a pass: the engine's own time, with
        that of its final callbacks."""
        engine = self.engine_site
        if engine is not None and now_ns > nodes_ended_ns:
            tracker.book((engine.code, nodes_ended_ns, now_ns))
            if tracker.garbage.newest_ns > nodes_ended_ns:
                tracker.garbage.was_at(engine.code, nodes_ended_ns, now_ns)


class GradientReduction:
    """What ``DistributedDataParallel`` is about to do.

    It sums up gradients while a backward pass runs, and at the end of the pass waits
    until that is done: in a callback of the engine's, which nobody else sees.

    is_expected: whether it is prepared for a backward pass that is not over yet.
    buckets: what it sums up in that pass, as far as it is known.
    """

    def __init__(self) -> None:
        self.is_expected = False
        self.buckets = GradientBuckets()


#: The one there is.
gradient_reduction = GradientReduction()
