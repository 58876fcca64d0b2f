"""Several streams, threads and devices.

A stamp lies on the stream that is the current one when a call begins or ends. Work on
other streams counts as far as the stream of the stamps waits for it.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.devices.gpu.cuda import (
    DEVICE,
    SLEEP_CYCLES,
    Training,
    assert_equal_bits,
    totals,
)
from torchprof_hooks import Profile

pytestmark = pytest.mark.gpu

SHORT = SLEEP_CYCLES // 10


class Sleep(nn.Module):
    """Keeps the device busy. joins: whether the caller's stream waits for that."""

    def __init__(self, stream: torch.cuda.Stream, joins: bool) -> None:
        super().__init__()
        self.stream, self.joins = stream, joins

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(SHORT)
        if self.joins:
            here.wait_stream(self.stream)
        return x + 1


def sleep_ns() -> int:
    """How long the device sleeps for `SHORT`."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(SHORT)
    end.record()
    end.synchronize()
    milliseconds: float = start.elapsed_time(end)
    return round(milliseconds * 1e6)


def profile_of(model: nn.Module, x: torch.Tensor) -> Profile:
    """Of one call."""
    torch.cuda.synchronize()
    with torchprof_hooks.profile() as prof:
        model(x)
        torch.cuda.synchronize()
    return prof.profile


@pytest.mark.parametrize("joins", [False, True])
def test_work_on_a_stream_of_the_modules_own(joins: bool) -> None:
    model = Sleep(torch.cuda.Stream(), joins)
    x = torch.ones(8, device=DEVICE)
    sleep_ns()  # the first one is slower
    found_ns = totals(profile_of(model, x), "Sleep").device_self_ns
    assert found_ns >= 0
    # Counted as far as the caller's stream waits for it.
    assert (found_ns > 0.5 * sleep_ns()) == joins


def test_model_on_a_side_stream() -> None:
    stream = torch.cuda.Stream()
    model = Sleep(stream, joins=False)
    x = torch.ones(8, device=DEVICE)
    sleep_ns()
    with torch.cuda.stream(stream):
        profile = profile_of(model, x)
    assert totals(profile, "Sleep").device_self_ns > 0.5 * sleep_ns()


class Leaves(nn.Module):
    """Leaves another stream the current one."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        super().__init__()
        self.stream = stream

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(SHORT)
        torch.cuda.set_stream(self.stream)
        return x.clone()


def test_call_that_ends_on_another_stream() -> None:
    x = torch.ones(8, device=DEVICE)
    here = torch.cuda.current_stream()
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    try:
        with torchprof_hooks.profile() as prof:
            Leaves(other)(x)
            other.synchronize()  # its stamp is passed before the one of the begin
            prof.profile  # noqa: B018
    finally:
        torch.cuda.set_stream(here)
    assert totals(prof.profile, "Leaves").device_self_ns >= 0


class Branches(nn.Module):
    """Two layers side by side, one of them on a stream of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.here, self.there = nn.Linear(256, 256), nn.Linear(256, 256)
        self.stream = torch.cuda.Stream()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        current = torch.cuda.current_stream()
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            there = self.there(x)
        here = self.here(x)
        current.wait_stream(self.stream)
        result: torch.Tensor = here + there
        return result


def test_backward_on_two_streams() -> None:
    torch.manual_seed(0)
    model = Branches().to(DEVICE)
    x = torch.randn(64, 256, device=DEVICE, requires_grad=True)
    with torchprof_hooks.profile() as prof:
        for _ in range(400):  # so that spans are booked in between
            model(x).sum().backward()
    for name in ("Branches.here", "Branches.there"):
        found = totals(prof.profile, name, "backward")
        assert found.calls == 400
        assert found.device_self_ns >= 0


def test_threads_of_one_profile() -> None:
    with torchprof_hooks.profile() as prof:

        def work() -> None:
            training = Training()
            torch.cuda.synchronize()  # it was made on the default stream
            with prof, torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(100):
                    training.step()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    rows = [row for row in prof.profile.rows() if row.class_name == "Linear"]
    for phase in ("forward", "backward"):
        assert sum(row.phases[phase].calls for row in rows) == 4 * 100 * 2


class OnTwoDevices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(64, 64).to("cuda:0")
        self.second = nn.Linear(64, 64).to("cuda:1")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(x).to("cuda:1"))
        return result


def trained_on_two_devices(around: AbstractContextManager[Any]) -> list[torch.Tensor]:
    """Gradients of the last of many steps."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    model = OnTwoDevices()
    x = torch.randn(8, 64, device="cuda:0")
    with around:
        for _ in range(400):  # so that events are used again, and spans booked
            model.zero_grad()
            model(x).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_model_on_two_devices() -> None:
    prof = torchprof_hooks.profile()
    trained_on_two_devices(prof)
    assert totals(prof.profile, "OnTwoDevices.second", "backward").calls == 400


@pytest.mark.values
def test_gradients_on_two_devices() -> None:
    measured = trained_on_two_devices(torchprof_hooks.profile())
    assert_equal_bits(measured, trained_on_two_devices(nullcontext()))
