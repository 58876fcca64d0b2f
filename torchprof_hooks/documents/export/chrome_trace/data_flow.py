"""Arrows from the operation that made a tensor to each that takes it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from torchprof_hooks.documents.export.chrome_trace.events import Track
from torchprof_hooks.profiles.trace.step_trace import (
    LEAF_NODE,
    GraphPass,
    Operation,
    StepTrace,
)

#: Numbers of arrows begin here, far above those of torch's own arrows.
FIRST_NUMBER: Final = 1 << 40
CATEGORY: Final = "dataflow"
GRADIENT: Final = "gradient"


class Arrow(NamedTuple):
    """An arrow from one operation to another, with what it carries."""

    producer: Operation
    consumer: Operation
    carries: str


def arrows(trace: StepTrace) -> Iterator[Arrow]:
    """All arrows of a step, in the order in which the consumers began.

    A tensor comes from the operation that was the last to write its memory. (Views
    write nothing, so a view comes from where its content does.) The gradients that an
    autograd node gets come from the nodes that feed it in the graph, also where these
    pass on their own gradients unchanged.
    """
    passes = _Passes(trace.passes)
    writers: dict[int, Operation] = {}
    for operation in trace.operations:
        feeders = passes.feeders(operation)
        for feeder in feeders:
            yield Arrow(feeder, operation, GRADIENT)
        for block, tensor in operation.takes.items():
            writer = writers.get(block)
            if writer is not None and not (feeders and block in operation.gradients):
                yield Arrow(writer, operation, str(tensor))
        for block in operation.writes:
            writers[block] = operation


class _Passes:
    """Tracks which backward passes are running. Ask it of operations in order."""

    def __init__(self, passes: Iterable[GraphPass]) -> None:
        self._coming = deque(sorted(passes))
        self._running: list[tuple[int, _Graph]] = []  # with their ends

    def feeders(self, operation: Operation) -> list[Operation]:
        """The operations that feed the node that `operation` runs; [] if it runs no
        node."""
        now_ns, running = operation.start_ns, self._running
        while self._coming and self._coming[0].start_ns <= now_ns:
            begun = self._coming.popleft()
            running.append((begun.end_ns, _Graph(begun.edges)))
        while running and running[-1][0] < now_ns:
            running.pop()
        if operation.node is None or not running:
            return []
        return running[-1][1].feeders(operation, operation.node)


class _Graph:
    """Which autograd nodes of a pass have run, and which of them feed which."""

    def __init__(self, edges: Iterable[tuple[int, int]]) -> None:
        self._sources = defaultdict[int, list[int]](list)
        self._feeds_leaf = set[int]()
        for source, target in dict.fromkeys(edges):
            if target == LEAF_NODE:
                self._feeds_leaf.add(source)
            else:
                self._sources[target].append(source)
        self._run: dict[int, Operation] = {}
        self._newest: dict[int, Operation] = {}  # by thread

    def feeders(self, operation: Operation, node: int) -> list[Operation]:
        if node == LEAF_NODE:
            found = self._feeders_of_leaf(operation)
        else:
            run = self._run
            found = [run[source] for source in self._sources[node] if source in run]
            run[node] = self._newest[operation.thread] = operation
        return found if operation.gradients else []  # no gradients: nothing fed it

    def _feeders_of_leaf(self, operation: Operation) -> list[Operation]:
        # Leaves have no numbers. The engine runs a leaf before all other nodes that are
        # ready, so right after the last node that feeds it.
        newest = self._newest.get(operation.thread)
        if newest is None or newest.node not in self._feeds_leaf:
            return []
        return [newest]


def data_flow_events(trace: StepTrace, base_ns: int) -> Iterator[str]:
    """The arrows, as flow events at the beginnings of their operations.

    Not at the end of the first operation: Perfetto ties an event to the slice that
    began last, even if that is over, so there, to a slice inside of the operation. It
    draws arrows from the end of one slice to the beginning of the other in any case.
    """
    tracks: dict[int, Track] = {}
    for number, (producer, consumer, carries) in enumerate(arrows(trace), FIRST_NUMBER):
        for operation in (producer, consumer):
            if operation.thread not in tracks:
                track = Track(trace.process, operation.thread, base_ns)
                tracks[operation.thread] = track
        start, end = tracks[producer.thread], tracks[consumer.thread]
        said = carries, CATEGORY, number
        yield start.flow(*said, _just_inside(producer))
        yield end.flow(*said, _just_inside(consumer), ends=True)


def _just_inside(operation: Operation) -> int:
    """A moment in the operation before anything begins inside of it. It is some
    nanoseconds after the begin, as readers of traces round to about one."""
    duration_ns = operation.end_ns - operation.start_ns
    return operation.start_ns + min(10, duration_ns // 2)
