"""Mixed precision, scaled gradients, channels last."""

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
    Training,
    assert_equal_bits,
    no_synchronisation,
    totals,
)

pytestmark = pytest.mark.gpu

TYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
by_type = pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
by_measurer = pytest.mark.parametrize("measure", MEASURERS.values(), ids=MEASURERS)


class MixedTraining(Training):
    """Its steps compute in half precision, and scale the loss."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.scaler = torch.amp.GradScaler(DEVICE)

    def backward(self) -> torch.Tensor:
        with torch.autocast(DEVICE, self.dtype):
            loss: torch.Tensor = self.model(self.x).square().mean()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        return loss.detach()

    def step(self) -> torch.Tensor:
        loss = self.backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss


def trained(dtype: torch.dtype, around: AbstractContextManager[Any]) -> Any:
    training = MixedTraining(dtype)
    with around:
        losses = [training.step() for _ in range(4)]
    return [*losses, *training.state()]


@pytest.mark.values
@by_measurer
@by_type
def test_results_are_the_same(
    dtype: torch.dtype, measure: Callable[[], AbstractContextManager[Any]]
) -> None:
    assert_equal_bits(trained(dtype, measure()), trained(dtype, nullcontext()))


@by_measurer
@by_type
def test_forward_and_backward_wait_for_nothing(
    dtype: torch.dtype, measure: Callable[[], AbstractContextManager[Any]]
) -> None:
    training = MixedTraining(dtype)
    training.step()
    # Not the whole step: the scaler itself reads whether there was an overflow.
    with measure(), no_synchronisation():
        training.backward()
        training.backward()


def test_steps_are_counted_if_the_scaler_makes_them() -> None:
    training = MixedTraining(torch.bfloat16)
    training.step()
    with torchprof_hooks.profile() as prof:
        for _ in range(3):
            training.step()
    assert prof.profile.steps == 3
    assert totals(prof.profile, "(optimizer) SGD", "optimizer").device_self_ns > 0


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


@pytest.mark.values
@by_measurer
def test_channels_last(measure: Callable[[], AbstractContextManager[Any]]) -> None:
    assert_equal_bits(convolved(measure()), convolved(nullcontext()))
