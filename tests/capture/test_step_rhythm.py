"""When a step is over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.step_rhythm import LONGEST_STEP, StepRhythm
from torchprof_hooks.profiles.names import Phase


def site(phase: Phase, module: torch.nn.Module | None = None) -> Site:
    return Site(0, None, (), phase, module)


MODULE = torch.nn.Identity()
FORWARD = site("forward", MODULE)
BACKWARD = site("backward")


class Optimizer:
    """Anything that can die."""


class Steps:
    """Counts the steps that end."""

    def __init__(self) -> None:
        self.ended = 0
        self.rhythm = StepRhythm(self.end)

    def end(self) -> None:
        self.ended += 1

    def train(self, *optimizers: object, inside_call: bool = False) -> None:
        self.rhythm.paused(FORWARD)
        self.rhythm.paused(BACKWARD)
        for optimizer in optimizers:
            self.rhythm.optimizer_stepped(optimizer, inside_call)

    def infer(self) -> None:
        with torch.no_grad():
            self.rhythm.paused(FORWARD)


@pytest.fixture
def steps() -> Steps:
    return Steps()


def test_one_optimizer(steps: Steps) -> None:
    optimizer = Optimizer()
    for _ in range(3):
        steps.train()  # gradients are accumulated
        steps.train(optimizer)
    assert steps.ended == 3


def test_whether_an_optimizer_is_alone(steps: Steps) -> None:
    first, second = Optimizer(), Optimizer()
    assert steps.rhythm.only_optimizer == 0
    steps.train(first)
    assert steps.rhythm.only_optimizer == id(first)
    steps.train(first, second)
    assert steps.rhythm.only_optimizer == 0
    del second
    assert steps.rhythm.only_optimizer == id(first)


def test_optimizers_that_take_turns_are_one_step(steps: Steps) -> None:
    first, second = Optimizer(), Optimizer()
    steps.train(first)
    for _ in range(5):
        steps.train(second)
        steps.train(first)
    assert steps.ended == 1 + 5


def test_the_rarest_of_optimizers_ends_the_step(steps: Steps) -> None:
    critic, generator = Optimizer(), Optimizer()
    ended_at: list[str] = []
    for _ in range(4):
        for _ in range(5):
            before = steps.ended
            steps.train(critic)
            ended_at += ["critic"] * (steps.ended - before)
        before = steps.ended
        steps.train(generator)
        ended_at += ["generator"] * (steps.ended - before)
    assert ended_at == ["critic"] * 5 + ["generator"] * 4


def test_inference_counts_calls(steps: Steps) -> None:
    for _ in range(5):
        steps.infer()
    assert steps.ended == 5


def test_a_graph_is_waited_for(steps: Steps) -> None:
    steps.rhythm.paused(FORWARD)  # of the student
    steps.infer()  # of the teacher
    assert steps.ended == 0
    steps.rhythm.paused(BACKWARD)
    steps.rhythm.optimizer_stepped(Optimizer(), inside_call=False)
    assert steps.ended == 1


def test_a_step_within_a_call_ends_with_the_call(steps: Steps) -> None:
    steps.train(Optimizer(), inside_call=True)
    assert steps.ended == 0
    steps.rhythm.paused(FORWARD)
    assert steps.ended == 1


def repeat(times: int, call: Callable[[], object]) -> None:
    for _ in range(times):
        call()


def test_an_evaluation_after_training(steps: Steps) -> None:
    optimizer = Optimizer()
    steps.train(optimizer)
    repeat(LONGEST_STEP - 1, steps.infer)
    assert steps.ended == 1
    steps.infer()
    assert steps.ended == 2
    repeat(3, steps.infer)
    assert steps.ended == 5
    steps.train(optimizer)
    steps.train(optimizer)
    assert steps.ended == 7


def test_training_without_an_optimizer_of_torchs(steps: Steps) -> None:
    repeat(LONGEST_STEP, steps.train)
    assert steps.ended == 2


def test_optimizers_made_anew_are_not_waited_for(steps: Steps) -> None:
    for _ in range(5):
        optimizer = Optimizer()
        repeat(3, lambda used=optimizer: steps.train(used))  # type: ignore[misc]
        del optimizer
    assert steps.ended == 15
