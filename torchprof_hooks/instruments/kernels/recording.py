"""The recording of a session of torch's profiler."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from threading import get_ident, get_native_id
from typing import Any, Final, NamedTuple

from torchprof_hooks.instruments.kernels.trace_reader import (
    EventReader,
    read_modules,
    read_nodes,
    read_passes,
)
from torchprof_hooks.kernel.spans import StepSpans
from torchprof_hooks.kernel.torch_names.profiler import (
    activity_type,
    event_tree,
    flat_events,
    system_threads,
)
from torchprof_hooks.profiles.trace.step_trace import (
    OTHER_THREAD,
    DeviceActivity,
    GraphLaunches,
    StepTrace,
)


class Window(NamedTuple):
    """When a step began and ended, by `perf_counter_ns`."""

    start_ns: int
    end_ns: int


class RecordingOptions(NamedTuple):
    """What a hook wants to have recorded.

    operations: of the host. Devices are recorded in any case.
    tensors: tensors and memory.
    """

    operations: bool = True
    tensors: bool = False


class Recording:
    """What was recorded; any thread can read it.

    is_lost: whether another profiler of torch's took the place of ours meanwhile.
    """

    def __init__(
        self,
        profiler: Any,
        spans: StepSpans,
        is_lost: bool,
    ) -> None:
        self.thread = get_native_id()
        self._thread = get_ident()
        self.is_lost = is_lost
        self._profiler = profiler
        self._spans = spans
        self._offset_ns = unix_offset_ns()

    def torch_trace(self) -> bytes:
        """The Chrome trace that torch writes; it can do so once.

        Raises:
            OSError: it could not be written to a temporary file.
        """
        with tempfile.TemporaryDirectory(prefix="torchprof_hooks") as directory:
            path = Path(directory, "trace.json")
            self._profiler.export_chrome_trace(str(path))
            return path.read_bytes()

    def read(
        self,
        step: int,
        window: Window,
        with_tensors: bool,
        yield_gil: Callable[[], None] = lambda: None,
    ) -> StepTrace:
        """The recording as plain data.

        step: what the step is called.
        with_tensors: also operations, memory, and the graphs of backward passes.
        yield_gil: called often, to let other threads work.
        """
        offset_ns = self._offset_ns
        start_ns, end_ns = (time_ns + offset_ns for time_ns in window)
        trace = StepTrace(step, os.getpid(), self.thread, start_ns, end_ns)
        spans = self._spans
        trace.modules += read_modules(spans.sites, spans.infos, spans.spans, offset_ns)
        if with_tensors:
            trace.passes += read_passes(spans.passes, offset_ns)
            EventReader(trace, self._threads, yield_gil).read(self._events)
        return trace

    def read_devices(self, step: int, window: Window) -> StepTrace:
        """The recording as plain data: modules, nodes, and what devices have run."""
        trace = self.read(step, window, with_tensors=False)
        spans, offset_ns = self._spans, self._offset_ns
        trace.passes += read_passes(spans.passes, offset_ns)
        threads = {**spans.threads, self._thread: self.thread}
        trace.nodes += read_nodes(spans.sites, spans.nodes, threads, offset_ns)
        trace.activities += read_activities(flat_events(self._profiler), threads)
        for each in spans.launches:
            times = each.start_ns + offset_ns, each.end_ns + offset_ns
            trace.launches.append(GraphLaunches(each.thread, *times, each.graphs))
        return trace

    @cached_property
    def _events(self) -> Any:
        return event_tree(self._profiler)

    @cached_property
    def _threads(self) -> Any:
        is_alone = len({event.start_tid for event in self._events}) == 1
        return {} if is_alone else system_threads(self._profiler)


def unix_offset_ns() -> int:
    """How much has to be added to `perf_counter_ns` now to get Unix time, which torch's
    events have. Of three readings, the one that was interrupted the least."""
    readings = []
    for _ in range(3):
        before_ns, unix_ns, after_ns = (
            time.perf_counter_ns(),
            time.time_ns(),
            time.perf_counter_ns(),
        )
        readings.append((after_ns - before_ns, unix_ns - (before_ns + after_ns) // 2))
    return min(readings)[1]


_HOST: Final = "CPU"
#: Events on the tracks of devices that are no work of the device: ranges that the
#: program has marked, waiting for events, counters.
_NO_WORK: Final = {
    "gpu_user_annotation",
    "cuda_sync",
    "cuda_event",
    "cuda_profiler_range",
    "collective_comm",
    "overhead",
}
#: Endings of the types of calls by which the host gives devices something to do:
#: "cuda_runtime", "cuda_driver", "privateuse1_runtime", ...
_OF_DRIVERS: Final = ("_runtime", "_driver")


#: Kineto keeps so many bits of a thread's number, which is the system's, or Python's
#: (that of POSIX): CUPTI gives the latter of threads that torch does not know.
_BITS: Final = (1 << 32) - 1


def read_activities(
    events: Iterable[Any], threads: Mapping[int, int]
) -> Iterator[DeviceActivity]:
    """What devices have run, each with its launch: the call of the host that has the
    same correlation id. This ignores the names of calls, which differ from one kind of
    device to another, but for ``cudaGraphLaunch`` and the like.

    threads: the system's numbers of the threads that ran the step, by those of Python.
        If none of them has launched anything, the numbers that Kineto gives are of
        another kind, and threads are not known.
    """
    launches: dict[int, tuple[int, int, bool]] = {}
    work = []
    for event in events:
        kind = activity_type(event)
        if event.device_type().name != _HOST:
            if kind not in _NO_WORK:
                work.append(event)
        elif kind.endswith(_OF_DRIVERS):
            thread = event.device_resource_id() & _BITS
            of_graph = "GraphLaunch" in event.name()
            launches[event.correlation_id()] = event.start_ns(), thread, of_graph
    known = {ident & _BITS: number for ident, number in threads.items()}
    known |= {number & _BITS: number for number in threads.values()}
    are_known = any(thread in known for _, thread, _ in launches.values())
    for event in work:
        start_ns = event.start_ns()
        launch_ns, thread, of_graph = launches.get(
            event.correlation_id(), (None, 0, False)
        )
        yield DeviceActivity(
            f"{event.device_type().name.lower()}:{event.device_index()}",
            start_ns,
            start_ns + max(event.duration_ns(), 0),
            launch_ns,
            event.name(),
            known.get(thread, OTHER_THREAD) if are_known else None,
            of_graph,
        )
