"""Steps of optimizers, and what they call of the program."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizer_module

from torchprof_hooks import profile
from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.optimizer_steps import OptimizerHooks

pytestmark = pytest.mark.usefixtures("clock")

Closure = Callable[[], torch.Tensor]


class Called:
    """Notes what it is told; may do something at each."""

    def __init__(self, at_post: Callable[[], object] = lambda: None) -> None:
        self.told: list[str] = []
        self._at_post = at_post

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.told.append("pre")

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.told.append("post")
        self._at_post()

    def begin_closure(self) -> Callable[[], object]:
        return int


def step(closure: Closure | None = None) -> None:
    parameter = nn.Parameter(torch.ones(1))
    torch.optim.SGD([parameter], 0.1).step(closure)


def test_listeners_come_and_go_while_they_are_told() -> None:
    hooks = OptimizerHooks()
    other = Called()

    def take_over() -> None:
        attachments.detach(hooks, first)
        attachments.attach(hooks, other)

    first = Called(take_over)
    attachments.attach(hooks, first)
    step()
    step()
    attachments.detach(hooks, other)
    step()
    assert first.told == ["pre", "post"]
    assert other.told == ["pre", "post"]


def test_the_last_one_leaves_in_the_middle_of_a_step() -> None:
    hooks = OptimizerHooks()

    def leave() -> None:
        attachments.detach(hooks, only)

    only = Called(leave)
    attachments.attach(hooks, only)
    step()
    step()
    assert only.told == ["pre", "post"]
    attachments.detach(hooks, only)  # now outside of steps
    assert not optimizer_module._global_optimizer_pre_hooks
    assert not optimizer_module._global_optimizer_post_hooks


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
