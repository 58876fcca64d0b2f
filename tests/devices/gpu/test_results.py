"""The program computes what it would compute without us."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from tests.devices.gpu.cuda import MEASURERS, Training, assert_equal_bits

pytestmark = [pytest.mark.gpu, pytest.mark.values]


def trained(around: AbstractContextManager[Any]) -> list[torch.Tensor]:
    """The end of some steps, and their losses."""
    training = Training()
    with around:
        losses = [training.step() for _ in range(4)]
    return [*losses, *training.state()]


@pytest.mark.parametrize("measure", MEASURERS.values(), ids=MEASURERS)
def test_losses_gradients_and_random_numbers_are_the_same(
    measure: Callable[[], AbstractContextManager[Any]],
) -> None:
    assert_equal_bits(trained(measure()), trained(nullcontext()))
