"""Evaluations before the first training step are a part of the start, as long as that
seems to come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.capture.budgeted import (
    STEP_MS,
    THIRDS,
    Limited,
    Net,
    X,
    calls,
    infer,
    sampled,
    sampled_by,
    sgd,
    train,
)
from tests.fake_clock import MS, FakeClock, burn
from tests.helpers import in_thread
from torchprof_hooks.capture.sampling.estimates.strata import Strata
from torchprof_hooks.capture.sampling.levels import Level
from torchprof_hooks.capture.sampling.machine_costs import CountedCosts
from torchprof_hooks.capture.sampling.prices import Prices
from torchprof_hooks.capture.sampling.scheduler import Scheduler
from torchprof_hooks.capture.sampling.steps import step_detector

pytestmark = pytest.mark.usefixtures("clock")


def fit(evaluations: int, steps: int = 6) -> None:
    """An evaluation, to see that all is well; and training, which is slow at first."""
    model = Net()
    optimizer = sgd(model)
    infer(model, evaluations)
    for step in range(steps):
        burn(0 if step else 100)
        model(X).sum().backward()
        burn(STEP_MS)
        optimizer.step()


def measured_in_new_thread(program: Callable[[], object]) -> Strata:
    """One that has made no graph before."""

    def measure() -> Strata:
        with sampled(Level.MODULES, Level.PHASES) as sampler:
            program()
        return sampler.strata()

    return in_thread(measure)


@pytest.mark.parametrize("evaluations", [0, 1, 2, 30])
def test_the_first_training_step_is_no_part_of_the_loop(evaluations: int) -> None:
    strata = measured_in_new_thread(lambda: fit(evaluations))
    start = strata.warm_up
    assert (start.steps, strata.steps) == (evaluations + 1, evaluations + 6)
    assert start.profile.step_times.first_ns == (100 + STEP_MS) * MS
    assert start.profile.step_times.evaluations == evaluations
    assert start.profile.wall_ns == (100 + (evaluations + 1) * STEP_MS) * MS
    assert calls(start.profile, "Net.first", "forward") == evaluations + 1
    assert (strata.modules.steps, strata.phases.steps) == (3, 2)
    loop = strata.estimate(of_functions=False, warm_up=False)
    assert loop.wall_ns == 5 * STEP_MS * MS


def test_it_is_not_among_those_that_a_budget_measures(limited: Limited) -> None:
    def measure() -> None:
        with limited(*THIRDS) as prof:
            fit(2)
        found = prof.profile
        assert (found.steps, found.unmeasured_steps) == (2, 4)
        assert found.wall_ns == 2 * STEP_MS * MS
        assert found.unmeasured_ns == (100 + (2 + 4) * STEP_MS) * MS

    in_thread(measure)


def test_what_is_done_between_steps_is_done_between_evaluations() -> None:
    seen: list[int] = []

    def note(steps: int) -> bool:
        seen.append(steps)
        burn(50)
        return False

    def measure() -> Strata:
        with sampled(Level.PHASES) as sampler:
            sampler.at_step = note
            fit(3, 2)
        return sampler.strata()

    assert in_thread(measure).whole.wall_ns == (100 + 5 * STEP_MS) * MS
    assert seen == [1, 2, 3, 4, 5]


def test_an_evaluation_that_is_disturbed() -> None:
    def measure() -> Strata:
        with sampled(Level.MODULES) as sampler:
            sampler.at_step = lambda steps: steps == 2
            fit(5)
        return sampler.strata()

    strata = in_thread(measure)
    assert (strata.warm_up.steps, strata.disturbed.steps) == (5, 1)
    assert strata.warm_up.profile.step_times.first_ns == (100 + STEP_MS) * MS


def test_without_an_optimizer_the_first_evaluation_is_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step_detector, "any_optimizer_made", lambda: False)
    strata = measured_in_new_thread(lambda: infer(Net(), 9))
    assert (strata.warm_up.steps, strata.steps) == (1, 9)


def test_after_training_the_first_evaluation_is_the_start() -> None:
    def measure() -> Strata:
        model = Net()
        train(model, 1)
        with sampled(Level.MODULES) as sampler:
            infer(model, 9)
        return sampler.strata()

    assert in_thread(measure).warm_up.steps == 1


def test_training_is_not_expected_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_detector, "MOST_EVALUATIONS", 5)
    strata = measured_in_new_thread(lambda: fit(9, 0))
    assert (strata.warm_up.steps, strata.steps) == (5, 9)


def test_nor_while_that_costs_far_too_much(clock: FakeClock) -> None:
    dear = Prices(CountedCosts(500, 1_000, 1_000, 2_000, 20_000_000))  # are calls

    def measure() -> Strata:
        with sampled_by(Scheduler(0.02, tuple(Level), 20, dear)) as sampler:
            fit(200, 0)
        return sampler.strata()

    strata = in_thread(measure)
    assert strata.steps == 200
    assert 2 < strata.warm_up.steps < 20
    assert strata.looked_at(of_functions=False) < strata.warm_up.steps + 10


def test_backward_passes_that_no_optimizer_came_after_are_training() -> None:
    def program() -> None:
        model = Net()
        sgd(model)
        model(X).sum().backward()
        infer(model, 9)

    assert measured_in_new_thread(program).warm_up.steps <= 2
