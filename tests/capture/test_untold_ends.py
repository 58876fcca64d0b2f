"""Where only the ends of steps are seen, calls are counted, and the detector is told of
many at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.budgeted import (
    STEP_MS,
    Limited,
    Net,
    X,
    bare,
    infer,
    measured,
    registered,
    sgd,
)
from tests.fake_clock import MS, burn
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.sampling.sampled_steps import SampledSteps
from torchprof_hooks.capture.sampling.steps.step_detector import StepDetector
from torchprof_hooks.profiler import Profiler

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Site]:
    """The calls that the detector was told of one by one."""
    found: list[Site] = []
    call_ended = StepDetector.call_ended

    def noted(detector: StepDetector, site: Site, end_ns: int) -> None:
        found.append(site)
        call_ended(detector, site, end_ns)

    monkeypatch.setattr(StepDetector, "call_ended", noted)
    return found


def steps_of(prof: Profiler) -> SampledSteps:
    steps: Any = prof._rounds[0]._steps
    found: SampledSteps = steps
    return found


def train_with(optimizer: torch.optim.Optimizer, model: nn.Module, steps: int) -> None:
    for _ in range(steps):
        model(X).sum().backward()
        burn(STEP_MS)
        optimizer.step()


def test_evaluations_and_steps_in_turn(limited: Limited, told: list[Site]) -> None:
    model = Net()
    optimizer = sgd(model)
    with limited(bare(1000)) as prof:
        train_with(optimizer, model, 3)  # the first, a measured one, one that is not
        told.clear()
        for _ in range(4):
            infer(model, 5)
            train_with(optimizer, model, 2)
        assert not told
        infer(model, 3)
        live = prof.profile.step_times  # also of what was not told of yet
    times = prof.profile.step_times
    assert not told
    assert (
        (live.steps, live.evaluations) == (times.steps, times.evaluations) == (11, 23)
    )
    assert live.evaluation_ns == times.evaluation_ns == 23 * STEP_MS * MS
    assert times.first_ns + times.later_ns == 11 * STEP_MS * MS


def test_calls_without_graphs_in_a_training_step_are_a_part_of_it(
    limited: Limited, told: list[Site]
) -> None:
    model = Net()
    optimizer = sgd(model)
    with limited(bare(1000)) as prof:
        train_with(optimizer, model, 3)
        told.clear()
        for _ in range(4):
            loss = model(X).sum()
            infer(model, 2)  # targets, of a model that learns from itself
            loss.backward()
            optimizer.step()
    times = prof.profile.step_times
    assert not told
    assert (times.steps, times.evaluations) == (7, 0)
    assert times.later_ns == (2 + 4 * 2) * STEP_MS * MS


def test_a_run_ends_with_the_evaluation_that_is_its_last(
    limited: Limited, told: list[Site]
) -> None:
    model = Net()
    optimizer = sgd(model)
    with limited(bare(6), measured()) as prof:
        train_with(optimizer, model, 2)
        told.clear()
        infer(model, 30)
    found = prof.profile
    # The sixth of a run; then one that is looked into.
    assert len(told) == 2 * (30 // 7)
    assert (found.steps, found.unmeasured_steps) == (1, 1)
    assert found.step_times.evaluations == 30


def test_a_call_that_fails_is_no_evaluation(limited: Limited) -> None:
    model = Net()
    optimizer = sgd(model)
    with limited(bare(1000)) as prof:
        train_with(optimizer, model, 3)
        for _ in range(3):
            infer(model, 1)
            with torch.no_grad(), pytest.raises(RuntimeError):
                model(torch.ones(2, 5))
    assert prof.profile.step_times.evaluations == 3


class Policy(nn.Module):
    """Is called as a whole to play, and in parts to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.body(x))
        return y

    def learn(self, optimizer: torch.optim.Optimizer) -> None:
        self.head(torch.relu(self.body(X))).sum().backward()
        burn(STEP_MS)
        optimizer.step()


@pytest.mark.parametrize("watches", [True, False])
def test_evaluations_are_told_apart_where_calls_are_watched(
    limited: Limited, watches: bool
) -> None:
    """Its parts are called from outside at other times."""
    policy = Policy()
    optimizer = sgd(policy)
    with limited(bare(4), measured(4)) as prof:
        steps_of(prof)._scheduler.prices.watches = watches
        for _ in range(6):
            infer(policy, 2)
            for _ in range(2):
                policy.learn(optimizer)
                assert not registered(policy)["these modules"]
    times = prof.profile.step_times
    assert times.steps == 12
    assert (times.evaluations == 12) == watches
