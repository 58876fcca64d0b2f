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
def test_nothing_waits(measure: Measurer) -> None:
    training = Training()
    training.step()
    with measure(), no_synchronisation():
        for _ in range(3):
            training.step()


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


def test_nothing_waits_while_thousands_of_spans_are_booked() -> None:
    training = Training()
    training.step()
    with torchprof_hooks.profile(functions=True), no_synchronisation():
        for _ in range(200):
            training.step()
