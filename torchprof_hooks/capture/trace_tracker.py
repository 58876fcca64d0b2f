"""Follows one thread through a traced step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.span_log import FIELDS, Int64s
from torchprof_hooks.capture.torch_names.autograd import NO_SEQUENCE_NUMBER
from torchprof_hooks.profiles.step_trace import LEAF_NODE


class TrackedStep(NamedTuple):
    """What a tracker has seen in one step.

    spans: one row (code of the site, start, end) for each, on the tracker's clock.
    graph_edges: numbers of the autograd nodes of its backward passes, from and to.
    """

    spans: Int64s
    graph_edges: list[tuple[int, int]]


class TraceTracker(BackwardTracker):
    """Keeps each single span, with the moments at which it really began and ended, and
    the graphs of backward passes. Sites stay known from one step to the next."""

    def __init__(self) -> None:
        super().__init__()
        self._batches: list[Int64s] = []
        self._graph_edges: list[tuple[int, int]] = []
        self.log.on_fold = self._batches.append

    def take_step(self) -> TrackedStep:
        """What was seen since the last time."""
        self.log.fold()
        batches = [np.zeros((0, FIELDS), np.int64), *self._batches]
        tracked = TrackedStep(np.concatenate(batches), self._graph_edges)
        self._batches.clear()
        self._graph_edges = []
        return tracked

    def graph_is_known(self, nodes: Mapping[int, Any]) -> None:
        """Note who hands gradients on to whom (numbers only: nodes hold graphs)."""
        for number, node in nodes.items():
            for target, _ in node.next_functions:
                if target is not None:
                    to = target._sequence_nr()
                    to = LEAF_NODE if to == NO_SEQUENCE_NUMBER else to
                    self._graph_edges.append((number, to))

    def _end_entry(self, site: Site, end_ns: int, outputs: object) -> None:
        # An interruption of no length: its callers keep the times at which they began.
        super()._end_entry(site, site.start_ns, outputs)
