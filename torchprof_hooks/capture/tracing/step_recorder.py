"""Records what a tracker sees in traced steps."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from torchprof_hooks.capture.backward.backward_pass import BackwardPass
from torchprof_hooks.capture.backward.node_hooks import HookedPasses
from torchprof_hooks.capture.core.span_log import FIELDS, Int64s
from torchprof_hooks.capture.torch_names.autograd import (
    NO_SEQUENCE_NUMBER,
    sequence_number,
)
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.profiles.trace.step_trace import LEAF_NODE, GraphPass


class TrackedStep(NamedTuple):
    """What a tracker has seen in one step.

    spans: one row (code of the site, start, end) for each. These, and when passes ran,
        are on the tracker's clock.
    """

    spans: Int64s
    passes: list[GraphPass]


class StepRecorder:
    """Keeps each single span of traced steps, with the moments at which it really began
    and ended, and the graphs of backward passes. Sites are kept from one step to the
    next.

    tracker: that of the thread that makes this.
    """

    def __init__(self) -> None:
        self._graphs = _Graphs()
        self.tracker = Tracker(backward=self._graphs)
        self.tracker.gives_time_back = False  # callers keep their real begin
        self._batches: list[Int64s] = []
        self.tracker.log.on_fold = self._batches.append

    def take_step(self) -> TrackedStep:
        """What was seen since this was called last."""
        self.tracker.log.fold()
        batches = [np.zeros((0, FIELDS), np.int64), *self._batches]
        self._batches.clear()
        return TrackedStep(np.concatenate(batches), self._graphs.take())


class _Graphs(HookedPasses):
    """Keeps the graphs of a step's passes. With either core, their nodes have hooks."""

    def __init__(self) -> None:
        super().__init__()
        self._running: list[GraphPass] = []
        self._ended: list[GraphPass] = []

    def reaches(self, nodes: Mapping[int, Any]) -> None:
        """Note which node passes gradients to which. Only their numbers: a reference to
        a node would keep its graph alive."""
        edges = []
        for number, node in nodes.items():
            for target, _ in node.next_functions:
                if target is not None:
                    to = sequence_number(target)
                    to = LEAF_NODE if to == NO_SEQUENCE_NUMBER else to
                    edges.append((number, to))
        self._running.append(GraphPass(perf_counter_ns(), 0, edges))

    def forget(self, tracker: Tracker, running: BackwardPass) -> None:
        """Note when the pass ended."""
        if self._running:
            ended = self._running.pop()._replace(end_ns=perf_counter_ns())
            self._ended.append(ended)

    def take(self) -> list[GraphPass]:
        """The passes that have ended since this was called last."""
        ended, self._ended = self._ended, []
        self._running.clear()
        return ended
