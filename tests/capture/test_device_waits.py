"""What measuring takes of a device's time, where the device has nothing else to do."""

from __future__ import annotations

import itertools
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import torchprof_hooks
from tests.capture.test_device_meter import FakeDevice, FakeEvent, FakeStream
from tests.helpers import timed_by
from torchprof_hooks import Profile
from torchprof_hooks.capture.overhead.overhead_model import device_overhead
from torchprof_hooks.capture.snapshot import _part
from torchprof_hooks.capture.tracking.meters.device import ASK_EVERY, DeviceMeter, Waits
from torchprof_hooks.measure.device_clock import EventClock
from torchprof_hooks.profiles.totals import Totals


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
    assert device_overhead(DEVICE_NS, 0.0, sites(), CALLS, OVERHEAD_NS) == [0, 0, 0]


def test_a_device_that_always_waits() -> None:
    taken = device_overhead(DEVICE_NS, 1.0, sites(), CALLS, OVERHEAD_NS)
    # The model has paid for both stamps of its layers, and its caller for both of its.
    assert taken == [0, 700 + 100 - 300, 60 + 300]


def test_a_device_that_sometimes_waits() -> None:
    taken = device_overhead(DEVICE_NS, 0.5, sites(), CALLS, OVERHEAD_NS)
    assert taken == [0, 250, 180]


def test_no_more_is_taken_than_there_is() -> None:
    taken = device_overhead([-7, 100, 200], 1.0, sites(), CALLS, OVERHEAD_NS)
    assert taken == [0, 100, 200]


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
    with (
        timed_by(EventClock(device, "fake")),
        torchprof_hooks.profile() as prof,
    ):
        for _ in range(50):
            model(x).sum().backward()
    return prof.profile


def device_ns(found: Profile) -> int:
    return sum(totals.device_self_ns for totals in found.cells.values())


def test_times_of_an_idle_device_are_told_without_measuring() -> None:
    found = measured(IdleDevice())
    assert found.device_waits == found.device_asked > 0
    assert device_ns(found) > found.wall_ns - found.overhead_ns
    told = found.corrected()
    assert 0 < device_ns(told) < found.wall_ns - found.overhead_ns / 2
    assert device_ns(told) == device_ns(found) - sum(
        totals.device_overhead_ns for totals in found.cells.values()
    )


def test_times_of_a_device_that_is_behind_stay_as_they_are() -> None:
    device = FakeDevice()
    device.launch(5)  # for which nobody waits
    found = measured(device)
    assert found.device_waits == 0 < found.device_asked
    assert device_ns(found.corrected()) == device_ns(found)


def test_the_parts_add_up() -> None:
    model, x = nn.Linear(2, 2), torch.ones(4, 2)
    optimizer = torch.optim.SGD(model.parameters())
    clock = EventClock(IdleDevice(), "fake")
    with timed_by(clock), torchprof_hooks.profile() as prof:
        for _ in range(20):
            model(x).sum().backward()
            optimizer.step()
    found = prof.profile
    parts = (found.start_up, found.loop)
    assert all(device_ns(part.corrected()) > 0 for part in parts)
    together = sum(device_ns(part.corrected()) for part in parts)
    assert together == device_ns(found.corrected())
    rows = [{r.name: r for r in part.corrected().rows()} for part in (found, *parts)]
    for name, row in rows[0].items():
        times = [part[name].self_ns for part in rows[1:] if name in part]
        assert sum(times) == row.self_ns, name


def test_costs_are_taken_off_the_first_step_and_the_rest_as_off_both() -> None:
    for cost, whole, some in itertools.product(range(7), range(7), range(5)):
        for first in range(whole + 1):
            both = Totals(self_ns=whole, overhead_ns=cost)
            began = Totals(self_ns=first, overhead_ns=cost * some // 3)
            part = _part(both, began).overhead_ns
            taken = min(part, first) + min(cost - part, whole - first)
            assert 0 <= part <= cost
            assert taken == min(cost, whole)


def test_nothing_is_asked_while_a_graph_is_captured() -> None:
    device = FakeDevice()
    meter = DeviceMeter(EventClock(device))
    owner: Any = None
    for _ in range(100):
        meter.read(owner)
    device.capturing = device.stream.captured = True
    before = meter.waits
    for _ in range(100):
        assert meter.read(owner) is None
    assert meter.waits == before


def test_how_often_a_device_waits_is_asked_now_and_then() -> None:
    device = FakeDevice()
    meter = DeviceMeter(EventClock(device))
    owner: Any = None
    meter.read(owner)  # and finds that it is in use
    for at in range(170):
        meter.read(owner)
        device.launch(1)
        if at >= 85:
            device.catch_up()
    assert meter.waits == Waits(asked=10, waited=5)
    assert meter.waits.share == 0.5


def test_a_device_that_is_still_busy_with_the_call_itself_does_not_wait() -> None:
    device = FakeDevice()
    meter = DeviceMeter(EventClock(device))
    owner: Any = None
    meter.read(owner)
    for at in range(1, 341):
        if at % ASK_EVERY == 0:
            device.launch(5)  # behind the last stamp, which it has come past
        meter.read(owner)
        device.catch_up()
    assert meter.waits == Waits(asked=20, waited=0)


class Mute(FakeStream):
    def query(self) -> bool:
        raise NotImplementedError


def test_a_device_that_does_not_answer() -> None:
    device = FakeDevice()
    device.stream = Mute()
    meter = DeviceMeter(EventClock(device))
    owner: Any = None
    for _ in range(100):
        assert meter.read(owner) is not None
    assert meter.waits == Waits(asked=0, waited=0)
