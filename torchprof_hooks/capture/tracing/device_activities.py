"""Reads what devices have run out of the events of torch's profiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from torchprof_hooks.capture.torch_names.profiler import activity_type
from torchprof_hooks.profiles.trace.step_trace import DeviceActivity

_HOST: Final = "CPU"
#: Events on the tracks of devices that are no work of theirs: ranges that the program
#: has marked, waiting for events, counters.
_NO_WORK: Final = {
    "gpu_user_annotation",
    "cuda_sync",
    "cuda_event",
    "cuda_profiler_range",
    "collective_comm",
    "overhead",
}
#: How the types of calls end with which the host gives devices something to do:
#: "cuda_runtime", "cuda_driver", "privateuse1_runtime", ...
_OF_DRIVERS: Final = ("_runtime", "_driver")


def read_activities(events: Iterable[Any]) -> Iterator[DeviceActivity]:
    """What devices have run, with its launch: the call of the host that has the same
    correlation id. Names of calls differ from one kind of device to another, and are
    not looked at."""
    launches: dict[int, int] = {}
    work = []
    for event in events:
        kind = activity_type(event)
        if event.device_type().name != _HOST:
            if kind not in _NO_WORK:
                work.append(event)
        elif kind.endswith(_OF_DRIVERS):
            launches[event.correlation_id()] = event.start_ns()
    for event in work:
        start_ns = event.start_ns()
        yield DeviceActivity(
            f"{event.device_type().name.lower()}:{event.device_index()}",
            start_ns,
            start_ns + max(event.duration_ns(), 0),
            launches.get(event.correlation_id()),
        )
