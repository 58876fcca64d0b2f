"""The program computes what it would compute without us."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.devices.gpu.cuda import (
    DEVICE,
    MEASURERS,
    TYPES,
    Training,
    assert_equal_bits,
)

pytestmark = [pytest.mark.gpu, pytest.mark.values]


by_measurer = pytest.mark.parametrize("measure", MEASURERS.values(), ids=MEASURERS)


def trained(dtype: torch.dtype, around: AbstractContextManager[Any]) -> Any:
    """The end of some steps, and their losses."""
    training = Training(dtype=dtype)
    with around:
        losses = [training.step() for _ in range(4)]
    return [*losses, *training.state()]


@by_measurer
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_losses_gradients_and_random_numbers_are_the_same(
    dtype: torch.dtype, measure: Callable[[], AbstractContextManager[Any]]
) -> None:
    assert_equal_bits(trained(dtype, measure()), trained(dtype, nullcontext()))


def convolved(around: AbstractContextManager[Any]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3)
    model: Any = nn.Sequential(*layers)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    x = torch.randn(4, 8, 16, 16, device=DEVICE)
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    with around, torch.backends.cudnn.flags(enabled=True, deterministic=True):
        y = model(x)
        y.square().mean().backward()
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert x.grad is not None
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]


@by_measurer
def test_channels_last(measure: Callable[[], AbstractContextManager[Any]]) -> None:
    assert_equal_bits(convolved(measure()), convolved(nullcontext()))


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
    model = OnTwoDevices()
    x = torch.randn(8, 64, device="cuda:0")
    with around:
        for _ in range(400):  # so that events are used again, and spans booked
            model.zero_grad()
            model(x).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_gradients_on_two_devices() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    measured = trained_on_two_devices(torchprof_hooks.profile())
    assert_equal_bits(measured, trained_on_two_devices(nullcontext()))
