"""How often a device waits for the host."""

from __future__ import annotations

from tests.devices.test_device_meter import FakeDevice, FakeStream
from torchprof_hooks.capture.core.reference_meters import ASK_EVERY, DeviceMeter
from torchprof_hooks.measure.device_clock import EventClock


def test_nothing_is_asked_while_a_graph_is_captured() -> None:
    device = FakeDevice()
    meter = DeviceMeter(EventClock(device))
    for _ in range(100):
        meter.stamp()
    device.capturing = device.stream.captured = True
    before = meter.waits
    for _ in range(100):
        assert meter.stamp() is None
    assert meter.waits == before


def test_how_often_a_device_waits_is_asked_now_and_then() -> None:
    device = FakeDevice()
    meter = DeviceMeter(EventClock(device))
    meter.wake()
    for at in range(170):
        meter.stamp()
        device.launch(1)
        if at >= 85:
            device.catch_up()
    assert meter.waits == (10, 5)


def test_a_device_that_is_still_busy_with_the_call_itself_does_not_wait() -> None:
    device = FakeDevice()
    meter = DeviceMeter(EventClock(device))
    meter.wake()
    for at in range(1, 341):
        if at % ASK_EVERY == 0:
            device.launch(5)  # behind the last stamp, which it has come past
        meter.stamp()
        device.catch_up()
    assert meter.waits == (20, 0)


class Mute(FakeStream):
    def query(self) -> bool:
        raise NotImplementedError


def test_a_device_that_does_not_answer() -> None:
    device = FakeDevice()
    device.stream = Mute()
    meter = DeviceMeter(EventClock(device))
    for _ in range(100):
        assert meter.stamp() is not None
    assert meter.waits == (0, 0)
