"""How long the device idles in a step, where it is known."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from tests.devices.gpu.cuda import DEVICE, SLEEP_CYCLES
from torchprof_hooks.instruments.kernels.device_tracer import DeviceTracer
from torchprof_hooks.profiles.trace.device_step import DeviceStep, DeviceUse

pytestmark = pytest.mark.gpu

#: The host sleeps so long in one module: the device has nothing to do meanwhile.
PAUSE_S = 0.2


class Pause(nn.Module):
    """The host waits for the device, and sleeps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.cuda.synchronize()
        time.sleep(PAUSE_S)
        return x * 1


class Sleep(nn.Module):
    """The device is busy for a while."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.cuda._sleep(SLEEP_CYCLES)
        return x * 1


def traced(model: nn.Module) -> tuple[DeviceStep, DeviceUse]:
    x = torch.ones(8, device=DEVICE, requires_grad=True)
    idle = DeviceTracer()
    for number in (3, 4):
        assert idle.begin(number - 1)
        model(x).sum().backward()
        torch.cuda.synchronize()
        idle.end(number)
    found = idle.found()
    assert not found.reason
    [use] = found.devices
    assert use.device == "cuda:0"
    assert use.busy_ns + use.idle_ns == found.step_ns
    return found, use


def test_idle_time_is_that_of_the_module_that_paused() -> None:
    found, use = traced(nn.Sequential(nn.Linear(8, 8), Pause()).to(DEVICE))

    longest = use.rows[0]
    assert (longest.module, longest.phase) == ("Sequential.1", "forward")
    assert longest.idle_ns >= 0.99e9 * PAUSE_S
    assert use.busy_ns < found.step_ns / 2


def test_a_device_that_is_behind_the_host_is_busy() -> None:
    found, use = traced(Sleep().to(DEVICE))

    assert use.busy_ns > 0.9 * found.step_ns
