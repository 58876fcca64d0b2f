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

#: Numbers of arrows begin here, far from those that torch's own have.
FIRST_NUMBER: Final = 1 << 40
CATEGORY: Final = "dataflow"
GRADIENT: Final = "gradient"


class Arrow(NamedTuple):
    """Goes from one operation to another, and says what it carries."""

    producer: Operation
    consumer: Operation
    carries: str


def arrows(trace: StepTrace) -> Iterator[Arrow]:
    """All arrows of a step, in the order in which the consumers began.

    A tensor comes from the operation that was the last to write its memory. (Views
    write nothing: what takes a view takes it from where its content comes from.) The
    gradients that an autograd node is given come from the nodes before it in the graph,
    also where those just hand on what they were given.
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
    """The backward passes that are running, as time goes on."""

    def __init__(self, passes: Iterable[GraphPass]) -> None:
        self._coming = deque(sorted(passes))
        self._running: list[tuple[int, _Graph]] = []  # with their ends

    def feeders(self, operation: Operation) -> list[Operation]:
        """The operations that feed the node that `operation` runs, if it does."""
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
        # Leaves have no numbers. The engine runs them before all others, so right after
        # the node that was the last to feed them.
        newest = self._newest.get(operation.thread)
        if newest is None or newest.node not in self._feeds_leaf:
            return []
        return [newest]


def data_flow_events(trace: StepTrace, base_ns: int) -> Iterator[str]:
    """The arrows, as flow events at the beginnings of their operations.

    Perfetto ties an event to the slice that began last, whether or not that is over: at
    the end of an operation, to a slice inside of it. It draws an arrow from the end of
    one slice to the beginning of the other all the same.
    """
    tracks: dict[int, Track] = {}
    for number, (producer, consumer, carries) in enumerate(arrows(trace), FIRST_NUMBER):
        for operation in (producer, consumer):
            if operation.thread not in tracks:
                track = Track(trace.process, operation.thread, base_ns)
                tracks[operation.thread] = track
        start, end = tracks[producer.thread], tracks[consumer.thread]
        yield start.flow_start(carries, CATEGORY, number, _just_inside(producer))
        yield end.flow_end(carries, CATEGORY, number, _just_inside(consumer))


def _just_inside(operation: Operation) -> int:
    """A moment before anything begins that is inside of the operation; readers of
    traces round to about a nanosecond."""
    duration_ns = operation.end_ns - operation.start_ns
    return operation.start_ns + min(10, duration_ns // 2)
