"""What measuring takes of a device's time, where the device has nothing else to do."""

from __future__ import annotations

from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.capture.test_device_meter import FakeDevice, FakeEvent, FakeStream
from torchprof_hooks import Profile
from torchprof_hooks.capture.overhead.device_waits import without_waits
from torchprof_hooks.capture.tracking.device_meter import DeviceMeter, Waits
from torchprof_hooks.measure.device_clock import EventClock


def sites() -> Any:
    """A model that has called a layer; reading meters took 800 ns for all calls."""
    outside = SimpleNamespace(code=0, reading_ns=300)
    model = SimpleNamespace(code=1, reading_ns=500, caller=outside)
    layer = SimpleNamespace(code=2, reading_ns=0, caller=model)
    outside.caller = outside
    return [outside, model, layer]


#: 1 call of the model, 3 of the layer: a stamp takes 800 / 4 / 2 = 100 ns.
CALLS = [0, 1, 3]
OVERHEAD_NS = [400, 700, 60]
DEVICE_NS = [0, 10_000, 5000]


def test_a_device_that_never_waits_keeps_its_times() -> None:
    assert without_waits(DEVICE_NS, 0.0, sites(), CALLS, OVERHEAD_NS) == DEVICE_NS


def test_a_device_that_always_waits() -> None:
    left = without_waits(DEVICE_NS, 1.0, sites(), CALLS, OVERHEAD_NS)
    # The model has paid for both stamps of its layers, and its caller for both of its.
    assert left == [0, 10_000 - (700 + 100 - 300), 5000 - (60 + 300)]


def test_a_device_that_sometimes_waits() -> None:
    left = without_waits(DEVICE_NS, 0.5, sites(), CALLS, OVERHEAD_NS)
    assert left == [0, 10_000 - 250, 5000 - 180]


def test_no_more_is_taken_than_there_is() -> None:
    assert without_waits([-7, 100, 200], 1.0, sites(), CALLS, OVERHEAD_NS) == [-7, 0, 0]


class RealTimeEvent(FakeEvent):
    def record(self, stream: FakeStream) -> None:
        self.stream, self.at_ms = stream, 1e3 * perf_counter()

    def query(self) -> bool:
        return True


class IdleDevice(FakeDevice):
    """It does what it is given at once, and its clock is the host's."""

    def Event(self, enable_timing: bool) -> RealTimeEvent:  # noqa: N802
        return RealTimeEvent(self)


def measured(device: FakeDevice) -> Profile:
    """Of a chain of small modules."""
    model = nn.Sequential(*(nn.ReLU() for _ in range(20)))
    x = torch.ones(4, requires_grad=True)
    with torchprof_hooks.profile(device_clock=EventClock(device, "fake")) as prof:
        for _ in range(50):
            model(x).sum().backward()
    return prof.profile


def device_ns(found: Profile) -> int:
    return sum(totals.device_self_ns for totals in found.cells.values())


def test_times_of_an_idle_device_are_without_measuring(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = measured(IdleDevice())
    monkeypatch.setattr(DeviceMeter, "waits", Waits(asked=1, waited=0))
    uncorrected = measured(IdleDevice())

    assert device_ns(uncorrected) > uncorrected.wall_ns - uncorrected.overhead_ns
    assert 0 < device_ns(found) < found.wall_ns - found.overhead_ns / 2


def test_how_often_a_device_waits_is_asked_now_and_then() -> None:
    device = FakeDevice()
    meter = DeviceMeter(EventClock(device))
    owner: Any = None
    for at in range(170):
        meter.read(owner)
        device.launch(1)
        if at >= 85:
            device.catch_up()
    assert meter.waits == Waits(asked=10, waited=5)
    assert meter.waits.share == 0.5
