"""Steps of optimizers, and what they call of the program."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

import pytest
import torch
from torch import nn

from torchprof_hooks import profile

pytestmark = pytest.mark.usefixtures("clock")

Closure = Callable[[], torch.Tensor]


def step(closure: Closure | None = None) -> None:
    parameter = nn.Parameter(torch.ones(1))
    torch.optim.SGD([parameter], 0.1).step(closure)


def test_the_traceback_of_a_closure_is_as_without_us() -> None:
    def closure() -> torch.Tensor:
        raise ValueError("mine")

    def frames() -> list[str]:
        with pytest.raises(ValueError, match="mine") as caught:
            step(closure)
        stack = traceback.extract_tb(caught.value.__traceback__)
        return [frame.name for frame in stack]

    alone = frames()
    with profile() as prof:
        measured = frames()
    if sys.version_info < (3, 11):  # see `leave_out_our_frame`
        measured.remove("measured_closure")
    assert measured == alone
    assert sum(t.self_ns for t in prof.profile.cells.values()) == prof.profile.wall_ns


def test_measuring_ends_in_a_closure() -> None:
    prof = profile()
    prof.__enter__()

    def closure() -> torch.Tensor:
        prof.__exit__(None, None, None)
        return torch.ones(())

    step(closure)
    found = prof.profile
    assert sum(t.self_ns for t in found.cells.values()) == found.wall_ns
    with prof:
        step()
    assert prof.profile.steps == 1
