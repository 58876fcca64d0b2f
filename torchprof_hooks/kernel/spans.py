"""Every single span of a step, for what records steps one by one."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Mapping, Sequence
from threading import get_native_id
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from torchprof_hooks.kernel.interruptions import OpenCalls
from torchprof_hooks.kernel.module_names import ModuleNames
from torchprof_hooks.kernel.node_hooks import HookedPasses
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.passes import BackwardPass
from torchprof_hooks.kernel.reference.span_log import FIELDS, Int64s
from torchprof_hooks.kernel.subscriptions import TrackerSubscription
from torchprof_hooks.kernel.torch_names.autograd import (
    NO_SEQUENCE_NUMBER,
    sequence_number,
)
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.trace.step_trace import (
    LEAF_NODE,
    GraphLaunches,
    GraphPass,
)


class StepSpans(NamedTuple):
    """What a thread did in one step.

    spans: one row (code of the site, start, end) for each. These, and when passes ran,
        are by `perf_counter_ns`.
    passes: the backward passes, with their graphs.
    nodes: one row (thread, start, code of the site) for each.
    threads: the system's numbers of the threads that ran nodes.
    sites: by their codes.
    infos: what is known of modules, by their names.
    launches: what observers know of launches of CUDA graphs.
    """

    spans: Int64s
    passes: list[GraphPass]
    nodes: Int64s
    threads: Mapping[int, int]
    sites: Sequence[Site]
    infos: Mapping[str, ModuleInfo]
    launches: list[GraphLaunches]


class SpanRecorder:
    """Follows the thread that makes it, and keeps each single span, with the moments at
    which it really began and ended, and the graphs of backward passes. Sites are kept
    from one step to the next.

    names: those of the modules; None: its own.
    observers: what interrupts calls.
    """

    def __init__(
        self, names: ModuleNames | None = None, observers: Sequence[Observer] = ()
    ) -> None:
        self.thread = get_ident()
        self._graphs, self._observers = _Graphs(), observers
        tracker = self._tracker = Tracker(
            names, backward=self._graphs, observers=observers
        )
        tracker.gives_time_back = False  # callers keep their real begin
        self._batches: list[Int64s] = []
        tracker.log.on_fold = self._batches.append
        self._subscription = TrackerSubscription(tracker)

    def open(self) -> None:
        """A step begins."""
        self._subscription.open()

    def end_calls(self) -> None:
        """The step ends. What has ended it, such as an optimizer, is still running."""
        self._tracker.abort_down_to(self._tracker.outside, perf_counter_ns())
        self.close()

    def close(self) -> None:
        """Follow no more, until `open`."""
        self._subscription.close()

    def take(self) -> StepSpans:
        """The spans since this was called last."""
        tracker = self._tracker
        tracker.log.fold()
        batches = [np.zeros((0, FIELDS), np.int64), *self._batches]
        self._batches.clear()
        return StepSpans(
            np.concatenate(batches),
            *self._graphs.take(),
            self._graphs.threads.copy(),
            tracker.sites,
            tracker.tree.names.infos,
            [each for one in self._observers for each in one.take_launches()],
        )


class _Graphs(HookedPasses):
    """Keeps the graphs of a step's passes, and which thread ran which node. With either
    core, their nodes have hooks.

    threads: the system's numbers of these threads, by those of Python.
    """

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[BackwardPass, GraphPass] = {}
        self._ended: list[GraphPass] = []
        self._nodes: list[int] = []  # thread, start, code, thread, ...
        self.threads: dict[int, int] = {}

    def on_node(self, tracker: OpenCalls, gradient: Any) -> None:
        """Note the thread, too: the engine has one for each device."""
        super().on_node(tracker, gradient)
        thread = get_ident()
        if thread not in self.threads:
            self.threads[thread] = get_native_id()
        self._nodes += thread, perf_counter_ns(), tracker.site.code

    def reaches(self, running: BackwardPass, nodes: Mapping[int, Any]) -> None:
        """Note which node passes gradients to which. Only their numbers: a reference to
        a node would keep its graph alive."""
        edges = []
        for number, node in nodes.items():
            for target, _ in node.next_functions:
                if target is not None:
                    to = sequence_number(target)
                    to = LEAF_NODE if to == NO_SEQUENCE_NUMBER else to
                    edges.append((number, to))
        self._running[running] = GraphPass(perf_counter_ns(), 0, edges)

    def forget(self, tracker: OpenCalls, running: BackwardPass) -> None:
        """Note when the pass ended."""
        super().forget(tracker, running)
        if (found := self._running.pop(running, None)) is not None:
            self._ended.append(found._replace(end_ns=perf_counter_ns()))

    def take(self) -> tuple[list[GraphPass], Int64s]:
        """The passes that have ended since this was called last, and the nodes."""
        ended, self._ended = self._ended, []
        nodes, self._nodes = self._nodes, []
        self._running.clear()
        return ended, np.array(nodes, np.int64).reshape(-1, FIELDS)
