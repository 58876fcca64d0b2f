"""The loop never waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

import torchprof_hooks
from tests.devices.gpu.cuda import (
    DEVICE,
    MEASURERS,
    TYPES,
    Training,
    no_synchronisation,
    sleep,
)

pytestmark = pytest.mark.gpu

Measurer = Callable[[], AbstractContextManager[Any]]
by_measurer = pytest.mark.parametrize("measure", MEASURERS.values(), ids=MEASURERS)


def test_the_check_finds_what_waits() -> None:
    x = torch.ones(1, device=DEVICE)
    with no_synchronisation(), pytest.raises(RuntimeError, match="synchroniz"):
        x.item()
    with no_synchronisation(), pytest.raises(AssertionError, match="waits"):
        torch.cuda.synchronize()
    x.item()  # it may wait again


@by_measurer
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
def test_nothing_waits(dtype: torch.dtype, measure: Measurer) -> None:
    training = Training(dtype=dtype)
    training.step()
    # A scaler itself reads whether there was an overflow, in each step.
    does = training.backward if training.is_mixed else training.step
    with measure(), no_synchronisation():
        for _ in range(3):
            does()


@by_measurer
def test_the_host_runs_ahead_of_the_device(measure: Measurer) -> None:
    training = Training()
    with measure():
        for _ in range(2):  # what is made once is made
            training.step()
        torch.cuda.synchronize()
        awake = sleep()
        training.step()
        training.step()
        assert not awake.query()
    awake.synchronize()


def test_nothing_waits_for_batches_from_pinned_memory() -> None:
    training = Training()
    batch = training.x.cpu().pin_memory()
    training.step()
    with torchprof_hooks.profile(functions=True, memory=True), no_synchronisation():
        for _ in range(3):
            training.x = batch.to(DEVICE, non_blocking=True)
            training.step()
