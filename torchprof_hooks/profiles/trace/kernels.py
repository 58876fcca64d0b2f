"""Which module launched the kernels of a traced step, and how long these ran."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple

from torchprof_hooks.profiles.cells import Chain
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.trace.graphs import places_in_graphs
from torchprof_hooks.profiles.trace.host_places import (
    UNSEEN_NAME,
    HostPlace,
    HostPlaces,
    named_place,
)
from torchprof_hooks.profiles.trace.step_trace import (
    OTHER_THREAD,
    DeviceActivity,
    NodeRun,
    StepTrace,
)

#: Name of the row for what threads launched that are not followed.
OTHER_THREADS_NAME: Final = "(other threads)"

_begin: Final = attrgetter("start_ns")
_UNSEEN: Final = named_place(UNSEEN_NAME)
_OTHER_THREADS: Final = named_place(OTHER_THREADS_NAME)


class Kernel(NamedTuple):
    """The kernels (or copies, ...) of one name that one place has launched.

    calls: how many ran.
    busy_ns: the sum of their durations.
    """

    name: str
    calls: int
    busy_ns: int


class KernelRow(NamedTuple):
    """The kernels that one place has launched.

    path: the place: the chain of calls to a module (or optimizer, ...), its name last.
    kernels: by name, the longest first.
    """

    path: Chain
    phase: Phase
    kernels: tuple[Kernel, ...] = ()

    @property
    def module(self) -> str:
        """The name of the module."""
        return self.path[-1]

    @property
    def busy_ns(self) -> int:
        """How long they ran, without those of the calls inside."""
        return sum(kernel.busy_ns for kernel in self.kernels)


class Launches:
    """Tells which place has launched an activity: the innermost module (or optimizer,
    ...) that the launching thread was in. In CUDA graphs of compiled code, it is what
    each kernel works for.

    The step runs in one thread, and its backward passes in threads of the engine, while
    the first one waits: then the place is that at the time of the launch. Where several
    devices have nodes that run at once, in a thread each, it is that of the last node
    that the launching thread has begun.
    """

    def __init__(self, trace: StepTrace, places: HostPlaces) -> None:
        self._places = places
        self._passes = trace.passes
        self._in_graphs = places_in_graphs(trace)
        nodes = sorted(trace.nodes, key=_begin)
        self._nodes: dict[int | None, list[NodeRun]] = {None: nodes}  # None: all
        for node in nodes:
            self._nodes.setdefault(node.thread, []).append(node)

    def place_of(self, activity: DeviceActivity) -> HostPlace:
        """The place that has launched the activity."""
        if id(activity) in self._in_graphs:
            return self._in_graphs[id(activity)]
        if activity.launch_ns is None:
            return _UNSEEN
        if activity.thread == OTHER_THREAD:
            return _OTHER_THREADS
        node = self._overtaken(activity.thread, activity.launch_ns)
        if node is not None:
            return HostPlace(node.path, node.phase)
        return self._places.at(activity.launch_ns)

    def _overtaken(self, thread: int | None, launch_ns: int) -> NodeRun | None:
        """The node that runs in the thread, if another thread has begun one since."""
        if len(self._nodes) <= 2:  # one thread has run all
            return None
        passes = [run for run in self._passes if run.start_ns <= launch_ns < run.end_ns]
        own, last = (self._last(each, launch_ns) for each in (thread, None))
        if own is last or own is None or not passes:
            return None
        return own if own.start_ns >= min(run.start_ns for run in passes) else None

    def _last(self, thread: int | None, time_ns: int) -> NodeRun | None:
        begun = self._nodes.get(thread, ())
        number = bisect_right(begun, time_ns, key=_begin)
        return begun[number - 1] if number else None


def find_kernels(
    activities: Iterable[DeviceActivity], trace: StepTrace, launches: Launches
) -> tuple[int, tuple[KernelRow, ...]]:
    """What one device ran for the step: how long any of it ran, and rows by the places
    that launched it, the longest first.

    That is all that the host launched in the step, even if the device ran it later: a
    device that is behind runs the step before meanwhile. What was launched by a call
    that was not recorded counts if it began in the step.

    Durations of the rows add up to the time in which any of it ran, unless several
    streams were busy at once.
    """
    sums: defaultdict[HostPlace, dict[str, Kernel]] = defaultdict(dict)
    busy_ns = until_ns = 0
    for activity in sorted(activities, key=lambda each: each.start_ns):
        time_ns = activity.launch_ns
        time_ns = activity.start_ns if time_ns is None else time_ns
        if not trace.start_ns <= time_ns < trace.end_ns:
            continue
        begin_ns, end_ns = activity.start_ns, activity.end_ns
        busy_ns += max(end_ns - max(begin_ns, until_ns), 0)
        until_ns = max(until_ns, end_ns)
        place = sums[launches.place_of(activity)]
        _, calls, sum_ns = place.get(activity.name, ("", 0, 0))
        ran_ns = sum_ns + end_ns - begin_ns
        place[activity.name] = Kernel(activity.name, calls + 1, ran_ns)
    rows = [
        KernelRow(
            *place, tuple(sorted(found.values(), key=lambda k: (-k.busy_ns, k.name)))
        )
        for place, found in sums.items()
    ]
    rows.sort(key=lambda row: (-row.busy_ns, row.path, row.phase))
    return busy_ns, tuple(rows)
