"""Advice on a device that waits, and on a host that waits for it."""

from __future__ import annotations

import pytest
import torch

from tests.cores import NATIVE_CORE
from tests.devices.accelerator.device import Device, Work
from tests.documents.test_rules import rules_of
from torchprof_hooks import Profile, profile

pytestmark = [NATIVE_CORE, pytest.mark.slow]

#: In few of them, the device is asked whether it waits.
STEPS = 400


class Slow(Work):
    """The host takes some time before it launches anything."""

    def __init__(self, device: Device, host_ms: float) -> None:
        super().__init__(device, 0 if host_ms > 1 else 9)
        self.host_ms = host_ms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.device.pass_time(self.host_ms)
        return super().forward(x)


def run(device: Device, host_ms: float, reads: int = 0) -> Profile:
    """Calls, after some of which a result is read."""
    model = torch.nn.Sequential(*(Slow(device, host_ms) for _ in range(4)))
    x = torch.ones(2, device="planted")
    with torch.no_grad(), profile(functions=True) as prof:
        for number in range(STEPS):
            out = model(x)
            if number < reads:
                out.sum().item()
    return prof.profile


def test_the_host_is_the_bottleneck_of_a_device_that_waits(device: Device) -> None:
    assert rules_of(run(device, host_ms=9)) == ["the host"]
    assert rules_of(run(device, host_ms=0.1)) == []


def test_results_that_are_read_are_told(device: Device) -> None:
    assert rules_of(run(device, host_ms=0.1, reads=STEPS)) == ["reads from a device"]
    assert rules_of(run(device, host_ms=0.1, reads=STEPS // 4)) == []
