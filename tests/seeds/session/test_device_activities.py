"""What is read from events of torch's profiler about devices. Before torch 2.13, these
do not tell their types."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from torchprof_hooks.instruments.kernels.recording import read_activities
from torchprof_hooks.kernel.torch_names.profiler import (
    activity_type,
    flat_events,
    make_profiler,
)
from torchprof_hooks.profiles.trace.step_trace import OTHER_THREAD


@dataclass
class Event:
    """As torch 2.8 to 2.12 have them; these cannot be made without a device."""

    told_name: str
    device: str
    begun_ns: int
    number: int
    is_mark: bool = False
    thread: int = -1

    def name(self) -> str:
        return self.told_name

    def device_type(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.device)

    def device_index(self) -> int:
        return 0

    def start_ns(self) -> int:
        return self.begun_ns

    def duration_ns(self) -> int:
        return 10

    def correlation_id(self) -> int:
        return self.number

    def device_resource_id(self) -> int:
        return self.thread

    def is_user_annotation(self) -> bool:
        return self.is_mark


@pytest.mark.parametrize(
    "call", ["cudaLaunchKernel", "cuLaunchKernelEx", "hipModuleLaunchKernel"]
)
def test_launches_are_known_by_the_names_of_calls(call: str) -> None:
    events = [
        Event("aten::add", "CPU", 1, 7),  # operations are numbered on their own
        Event("custom", "CPU", 2, 7),
        Event("cudaMine", "CPU", 3, 7, is_mark=True),
        Event(call, "CPU", 5, 7),
        Event("add_kernel", "CUDA", 20, 7),
        Event("my range", "CUDA", 0, 7, is_mark=True),
        Event("memcpy", "CUDA", 40, 8),
    ]
    assert [found[:5] for found in read_activities(events, {})] == [
        ("cuda:0", 20, 30, 5, "add_kernel"),
        ("cuda:0", 40, 50, None, "memcpy"),
    ]


def test_launches_of_graphs() -> None:
    for call in "cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch":
        events = [Event(call, "CPU", 5, 7), Event("add_kernel", "CUDA", 20, 7)]
        assert [found.of_graph for found in read_activities(events, {})] == [True]


@dataclass
class TypedEvent(Event):
    """As torch has them since 2.13."""

    kind: str = ""

    def activity_type(self) -> str:
        return self.kind


@pytest.mark.parametrize("device", ["XPU", "PrivateUse1"])
def test_other_kinds_of_devices_have_types_of_their_own(device: str) -> None:
    events = [
        TypedEvent("launch", "CPU", 5, 7, kind=f"{device.lower()}_runtime"),
        TypedEvent("operation", "CPU", 2, 7, kind="cpu_op"),
        TypedEvent("add_kernel", device, 20, 7, kind="concurrent_kernel"),
        TypedEvent("range", device, 20, 7, kind="gpu_user_annotation"),
    ]
    [found] = read_activities(events, {})
    assert found[:5] == (f"{device.lower()}:0", 20, 30, 5, "add_kernel")


#: Python's number of a thread, as it is and as Kineto keeps it; and the system's.
IDENT, KEPT, SYSTEMS = 0x7F12_F123_4567, 0xF123_4567 - (1 << 32), 4711


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([SYSTEMS], [SYSTEMS]),
        ([KEPT], [SYSTEMS]),  # CUPTI tells that, of threads that torch has not met
        ([KEPT, 99], [SYSTEMS, OTHER_THREAD]),
        ([98, 99], [None, None]),  # numbers of another kind: nothing is known
    ],
)
def test_threads_that_launch(told: list[int], found: list[int | None]) -> None:
    events = [
        event
        for n, thread in enumerate(told)
        for event in (
            Event("cudaLaunchKernel", "CPU", n, n, thread=thread),
            Event("kernel", "CUDA", 20 + n, n),
        )
    ]
    read = read_activities(events, {IDENT: SYSTEMS})
    assert [activity.thread for activity in read] == found


def test_real_operations_are_no_calls_of_drivers() -> None:
    profiler = make_profiler(with_tensors=False)
    profiler.start()
    with torch.autograd.profiler.record_function("cudaMine"):
        torch.ones(3, requires_grad=True).sum().backward()
    profiler.stop()
    events = [e for e in flat_events(profiler) if e.device_type().name == "CPU"]
    assert events
    assert not {"cuda_runtime", "kernel"} & set(map(activity_type, events))
