"""How often a device waits for the host."""

from __future__ import annotations

from typing import Any

from tests.capture.test_device_meter import FakeDevice, FakeStream
from torchprof_hooks.capture.tracking.meters.device import ASK_EVERY, DeviceMeter, Waits
from torchprof_hooks.measure.device_clock import EventClock


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
