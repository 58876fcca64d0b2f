"""Device times as the reference core takes them, of a fake device. Those of the native
core are tested with a planted one, in tests/devices/accelerator."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from tests.cores import PYTHON_CORE
from tests.devices.fake_device import FakeDevice, FakeStream
from tests.doing import Does
from tests.fake_clock import MS, burn
from tests.functions import Runs
from tests.helpers import SteadyMemory, counted_by, timed_by
from tests.planted import Work
from torchprof_hooks import profile
from torchprof_hooks.capture.core import reference_meters
from torchprof_hooks.capture.core.reference_meters import ASK_EVERY, DeviceMeter
from torchprof_hooks.measure.allocator_counter import Reading
from torchprof_hooks.measure.device_clock import EventClock
from torchprof_hooks.profiler import Profiler

pytestmark = PYTHON_CORE


class Kernel(nn.Module):
    """Queues work on the fake device in forward and in backward."""

    def __init__(self, device: FakeDevice, forward_ms: float, backward_ms: float):
        super().__init__()
        self.device, self.forward_ms, self.backward_ms = device, forward_ms, backward_ms

    def forward(self, x: torch.Tensor) -> Any:
        launch = self.device.launch
        return Runs.apply(
            x, lambda: launch(self.forward_ms), lambda: launch(self.backward_ms)
        )


class Model(nn.Module):
    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self.device = device
        self.a, self.b = Kernel(device, 1, 10), Kernel(device, 2, 20)

    def forward(self, x: torch.Tensor) -> Any:
        self.device.launch(5)  # the model's own
        return self.b(self.a(x))


def run(model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(2, requires_grad=True)).sum().backward()


@contextmanager
def measured(
    device: FakeDevice, is_read: bool = False, **options: Any
) -> Iterator[Profiler]:
    """Unless the profile is read, nobody waits for the device meanwhile."""
    with timed_by(EventClock(device, "fake")), profile(**options) as prof:
        yield prof
        assert is_read or device.waits == 0


def device_ms_of(prof: Profiler) -> dict[tuple[str, str], float]:
    """Own times on the device that are not 0, by name and phase."""
    return {
        (row.name, phase): totals.device_self_ns / MS
        for row in prof.profile.rows()
        for phase, totals in row.phases.items()
        if totals.device_self_ns
    }


def of_model(steps: int) -> dict[tuple[str, str], float]:
    """What a `Model` takes."""
    return {
        ("Model", "forward"): steps * 5,
        ("Model.a", "forward"): steps * 1,
        ("Model.b", "forward"): steps * 2,
        ("Model.a", "backward"): steps * 10,
        ("Model.b", "backward"): steps * 20,
    }


def test_device_times_without_waiting_for_the_device() -> None:
    device = FakeDevice()
    with measured(device) as prof:
        run(Model(device), 3)
    assert device_ms_of(prof) == of_model(3)
    whole = {row.name: row.phases for row in prof.profile.rows()}["Model"]
    assert whole["forward"].device_cumulative_ns == 3 * 8 * MS
    assert whole["backward"].device_cumulative_ns == 3 * 30 * MS
    assert prof.profile.devices == ("fake",)


def test_events_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_meters, "RESOLVE_AT", 50)
    device = FakeDevice()
    model = Model(device)
    with measured(device):
        for _ in range(20):
            run(model, 1)
            device.catch_up()
        made = device.events_made
        for _ in range(50):
            run(model, 1)
            device.catch_up()
    assert device.events_made == made


def test_device_that_lags_keeps_spans_waiting_without_losing_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reference_meters, "RESOLVE_AT", 5)
    device = FakeDevice()
    with measured(device) as prof:
        run(Model(device), 10)
    assert device_ms_of(prof) == of_model(10)


@pytest.mark.parametrize("state", ["uninitialized", "capturing"])
def test_no_stamp_where_none_may_be_taken(state: str) -> None:
    device = FakeDevice()
    device.initialized = state != "uninitialized"
    device.capturing = state == "capturing"
    with measured(device) as prof:
        run(Model(device), 1)
    assert device.events_made == 0
    assert not device_ms_of(prof)


@pytest.mark.parametrize("backend", ["native", "cudaMallocAsync"])
def test_no_event_on_a_device_that_the_program_keeps_nothing_on(backend: str) -> None:
    device = FakeDevice()
    device.backend = backend
    device.reserved[0] = 0
    clock = EventClock(device, "fake")
    # Only the native allocator counts what it has reserved.
    assert (clock.stamp() is None) == (backend == "native")
    device.reserved[0] = 512
    assert clock.stamp() is not None


def test_events_stay_on_their_device() -> None:
    device = FakeDevice()
    first, second = FakeStream(0), FakeStream(1)
    clock = EventClock(device)
    for stream in (first, second, first, second):
        device.stream = stream
        start = clock.stamp()
        device.launch(1)
        end = clock.stamp()
        device.catch_up()
        assert start is not None
        assert end is not None
        assert clock.elapsed_ns(start, end) == MS
        del start, end
    assert device.events_made == 4  # two for each device


def test_a_stamp_that_was_passed_before_the_first_one() -> None:
    device = FakeDevice()
    clock = EventClock(device)
    device.launch(5)
    start = clock.stamp()
    device.catch_up()
    device.stream = FakeStream()
    end = clock.stamp()
    assert start is not None
    assert end is not None
    assert clock.elapsed_ns(start, end) == -5 * MS


class Elsewhere(nn.Module):
    """Goes over to another stream, and leaves that the current one."""

    def __init__(self, device: FakeDevice, stream: FakeStream) -> None:
        super().__init__()
        self.device, self.stream = device, stream

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.device.launch(7)
        self.device.stream = self.stream
        self.device.launch(3)
        return x + 1


@pytest.mark.parametrize("index", [0, 1])
def test_call_that_ends_on_another_stream(
    monkeypatch: pytest.MonkeyPatch, index: int
) -> None:
    monkeypatch.setattr(reference_meters, "RESOLVE_AT", 0)
    device = FakeDevice()
    here, other = device.stream, FakeStream(index)
    with measured(device) as prof:
        Elsewhere(device, other)(torch.ones(2))
        device.catch_up()  # the other stream alone: the call's begin is still to come
        assert here.queued_ms > here.done_ms
        device.stream = here
        run(Model(device), 1)
    found = device_ms_of(prof)
    # Two devices have no clock in common.
    assert found.pop(("Elsewhere", "forward"), 0) == (0 if index else 3)
    # What went into the first queue shows when the program comes back to it.
    assert found.pop(("(outside modules)", "outside")) == (7 if index else 4)
    assert found == of_model(1)


def test_threads_share_the_events_of_a_clock() -> None:
    device = FakeDevice()
    clock = EventClock(device)
    pool = clock.stamp().pool  # type: ignore[union-attr]

    class TakenMeanwhile(list[Any]):
        """Says that there is something, which another thread then takes."""

        def __bool__(self) -> bool:
            return True

    clock._pools[0] = TakenMeanwhile()
    assert clock.stamp() is not None
    assert len(pool) == 1


def test_reading_device_times_in_the_middle_of_a_call() -> None:
    device = FakeDevice()
    model = Model(device)
    with measured(device, is_read=True) as prof:
        handle = model.b.register_forward_pre_hook(lambda *_: prof.profile and None)
        run(model, 2)
        handle.remove()
    assert device_ms_of(prof) == of_model(2)


# Devices that come into use while the program is measured


class Outer(nn.Module):
    """Calls something in front of a module."""

    def __init__(self, before: Callable[[], object], inner: nn.Module) -> None:
        super().__init__()
        self.idle, self.before, self.inner = Does(lambda: burn(1)), before, inner

    def forward(self, x: torch.Tensor) -> Any:
        self.idle(x)
        self.before()
        return self.inner(x)


each_option = pytest.mark.parametrize(
    "options", [{}, {"memory": True}, {"functions": True}], ids=str
)


@each_option
def test_a_device_that_comes_into_use_between_two_steps(options: Any) -> None:
    device = FakeDevice()
    device.initialized = False
    model = Model(device)
    with measured(device, **options) as prof:
        run(model, 3)
        assert device.events_made == 0
        assert not prof.profile.devices
        device.initialized = True
        run(model, 2)
    assert device_ms_of(prof) == of_model(2)
    assert prof.profile.devices == ("fake",)
    rows = {row.name: row.phases for row in prof.profile.rows()}
    assert rows["Model.a"]["forward"].calls == rows["Model.a"]["backward"].calls == 5


@pytest.mark.usefixtures("clock")
@each_option
def test_a_device_that_comes_into_use_in_the_middle_of_a_call(options: Any) -> None:
    """What is open then is measured from there on, and never less than its parts."""
    device = FakeDevice()
    device.initialized = False

    def begin() -> None:
        device.initialized = True
        device.launch(100)  # nobody could have been told of this

    with measured(device, **options) as prof:
        run(nn.Sequential(Outer(begin, Kernel(device, 1, 10))), 1)
    kernel = "Sequential.0.inner"
    assert device_ms_of(prof) == {(kernel, "forward"): 1, (kernel, "backward"): 10}


def test_a_device_is_looked_for_where_others_begin() -> None:
    """Also where no module is called: at optimizers, and at backward passes."""
    device = FakeDevice()
    device.initialized = False
    with measured(device) as prof:
        loss = Model(device)(torch.ones(2, requires_grad=True)).sum()
        device.initialized = True
        loss.backward()
    expected = {("Model.a", "backward"): 10, ("Model.b", "backward"): 20}
    assert device_ms_of(prof) == expected


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("begins", [False, True])
def test_memory_that_was_measured_before_a_device_came_into_use(begins: bool) -> None:
    device, memory = FakeDevice(), CountedMemory()
    device.initialized = not begins

    def begin() -> None:
        device.initialized = True

    def take() -> None:
        memory.used += 64

    with counted_by(memory), measured(device, memory=True) as prof:
        Outer(begin, Does(take))(torch.ones(2))
    rows = {row.name: row.phases for row in prof.profile.rows()}
    assert rows["Outer.inner"]["forward"].memory.used_bytes == 64


class CountedMemory(SteadyMemory):
    """Counts what it is told of."""

    used = 0

    def read(self) -> Reading:
        return self.used, 0, 0, 0


@pytest.mark.usefixtures("clock")
def test_a_report_beside_an_idle_device_is_that_of_a_build_without() -> None:
    device = FakeDevice()
    device.initialized = False
    x = torch.ones(2, requires_grad=True)
    reports = []
    for clock in (EventClock(device, "fake"), None):
        with timed_by(clock), profile(functions=True) as prof:
            Outer(int, Work(2, 3))(x).sum().backward()
        text = io.StringIO()
        prof.print_report(file=text)
        reports.append(text.getvalue())
    assert reports[0] == reports[1]


# How often a device waits for the host


def test_nothing_is_asked_while_a_graph_is_captured() -> None:
    device = FakeDevice()
    meter = DeviceMeter(EventClock(device))
    for _ in range(100):
        meter.left(0)
    device.capturing = device.stream.captured = True
    before = meter.waits, meter.stamps
    for _ in range(100):
        meter.left(0)
    assert (meter.waits, meter.stamps) == before


def test_how_often_a_device_waits_is_asked_now_and_then() -> None:
    device = FakeDevice()
    meter = DeviceMeter(EventClock(device))
    meter.wake()
    for at in range(10 * ASK_EVERY):
        meter.left(0)
        device.launch(1)
        if at >= 5 * ASK_EVERY:
            device.catch_up()
    assert meter.waits == (10, 5)


def test_a_device_that_is_still_busy_with_the_call_itself_does_not_wait() -> None:
    device = FakeDevice()
    meter = DeviceMeter(EventClock(device))
    meter.wake()
    for at in range(1, 20 * ASK_EVERY + 1):
        if at % ASK_EVERY == 0:
            device.launch(5)  # behind the last stamp, which it has come past
        meter.left(0)
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
        meter.left(0)
    assert meter.stamps == 100
    assert meter.waits == (0, 0)
