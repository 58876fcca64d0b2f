"""Device times, next to what Kineto says of the kernels."""

from __future__ import annotations

import kernel_times
import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.devices.gpu.cuda import DEVICE, Training, sleep, totals
from torchprof_hooks.measure.accelerator import EventClock

pytestmark = pytest.mark.gpu

STEPS = 5


class Multiply(nn.Module):
    """Some products of large matrices, each of which takes longer than a millisecond
    on any device so far: there are more gaps between kernels than the 2 % allow if
    kernels are short."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.weight = nn.Parameter(torch.eye(4096))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = x @ self.weight
        return x


def test_times_are_those_of_the_kernels() -> None:
    model = nn.Sequential(Multiply(1), Multiply(3)).to(DEVICE)
    x = torch.randn(4096, 4096, device=DEVICE, requires_grad=True)

    def step() -> None:
        sleep()  # so that the device has all of the step before it begins
        model(x).sum().backward()

    step()
    torch.cuda.synchronize()
    with kernel_times.trace(model) as traced, torchprof_hooks.profile() as prof:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    truth = traced.by_module()
    for name in ("Sequential.0", "Sequential.1"):
        for phase in kernel_times.PHASES:
            found_us = totals(prof.profile, name, phase).device_self_ns / 1000
            assert found_us == pytest.approx(
                truth[kernel_times.Owner(name, phase)], rel=0.02
            )


def test_work_queued_before_a_call_is_not_its_own() -> None:
    training = Training()
    training.step()
    with torchprof_hooks.profile() as prof:
        awake = sleep()
        training.model(training.x)
        awake.synchronize()
    model_ns = totals(prof.profile, "Sequential").device_cumulative_ns
    assert 0 < model_ns < 50_000_000


def test_a_device_without_memory_of_the_program_is_left_alone() -> None:
    torch.ones(1, device=DEVICE)
    here = torch.cuda.current_device()
    others = [index for index in range(torch.cuda.device_count()) if index != here]
    unused = [i for i in others if not torch.cuda.memory_reserved(i)]
    if not unused:
        pytest.skip("needs a CUDA device more")
    assert EventClock().is_in_use(here)
    assert not EventClock().is_in_use(unused[0])


def test_steps_are_counted_if_a_scaler_makes_them() -> None:
    training = Training(dtype=torch.bfloat16)
    training.step()
    with torchprof_hooks.profile() as prof:
        for _ in range(3):
            training.step()
    assert prof.profile.steps == 3
    assert totals(prof.profile, "(optimizer) SGD", "optimizer").device_self_ns > 0
