"""Evaluations before the first training step are a part of the start, as long as that
seems to come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cost.budgeted import (
    STEP_MS,
    Fixed,
    Net,
    X,
    bare,
    calls,
    followed,
    infer,
    measured,
    sgd,
    train,
)
from tests.fake_clock import MS, burn
from tests.helpers import in_thread
from torchprof_hooks.capture import thread_steps
from torchprof_hooks.profiles.data import ProfileData

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


def measured_here(
    program: Callable[[], object], is_disturbed: Callable[[int], bool] | None = None
) -> ProfileData:
    with followed(Fixed(bare(), measured())) as steps:
        steps.at_step = is_disturbed
        program()
    return steps.profile()


def measured_in_new_thread(
    program: Callable[[], object], is_disturbed: Callable[[int], bool] | None = None
) -> ProfileData:
    """One that has made no graph before."""
    return in_thread(lambda: measured_here(program, is_disturbed))


def of_start(found: ProfileData) -> int:
    times = found.start_up.step_times
    return times.steps + times.evaluations


@pytest.mark.parametrize("evaluations", [0, 1, 2, 30])
def test_the_first_training_step_is_no_part_of_the_loop(evaluations: int) -> None:
    found = measured_in_new_thread(lambda: fit(evaluations))
    start = found.start_up
    assert (of_start(found), found.measured.steps) == (evaluations + 1, evaluations + 6)
    assert start.step_times.first_ns == (100 + STEP_MS) * MS
    assert start.step_times.evaluations == evaluations
    assert start.wall_ns == (100 + (evaluations + 1) * STEP_MS) * MS
    assert calls(start, "Net.first", "forward") == evaluations + 1
    assert found.measured.measured == evaluations + 1 + 2
    assert found.loop.wall_ns == 5 * STEP_MS * MS


def test_what_is_done_between_blocks_is_aside_and_in_no_step() -> None:
    seen: list[int] = []

    def note(steps: int) -> bool:
        seen.append(steps)
        burn(50)
        return False

    found = measured_in_new_thread(lambda: fit(3, 3), note)
    assert seen == [4, 5, 6]
    assert found.wall_ns == (100 + 6 * STEP_MS + 3 * 50) * MS
    assert found.phase_times_ns()["profiler"] == 3 * 50 * MS
    assert found.step_times.later_ns == 2 * STEP_MS * MS


def test_a_disturbed_step_is_in_no_row() -> None:
    found = measured_in_new_thread(lambda: fit(0, 6), lambda steps: steps == 2)
    assert (found.measured.traced, found.measured.traced_ns) == (1, STEP_MS * MS)
    assert found.wall_ns == (100 + 5 * STEP_MS) * MS
    assert found.steps == 5


def test_without_an_optimizer_the_first_evaluation_is_the_start(
    no_optimizer: None,
) -> None:
    found = measured_in_new_thread(lambda: infer(Net(), 9))
    assert (of_start(found), found.measured.steps) == (1, 9)


def test_after_training_the_first_evaluation_is_the_start() -> None:
    def measure() -> ProfileData:
        model = Net()
        train(model, 1)
        return measured_here(lambda: infer(model, 9))

    assert of_start(in_thread(measure)) == 1


@pytest.mark.parametrize(
    ("limit", "value"),
    [("MOST_EVALUATIONS", 5), ("LONGEST_START_NS", 5 * STEP_MS * MS)],
)
def test_training_is_not_expected_without_end(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(thread_steps, limit, value)
    found = measured_in_new_thread(lambda: fit(9, 0))
    assert (of_start(found), found.measured.steps) == (5, 9)


def test_backward_passes_that_no_optimizer_came_after_are_training() -> None:
    def program() -> None:
        model = Net()
        sgd(model)
        model(X).sum().backward()
        infer(model, 9)

    assert of_start(measured_in_new_thread(program)) <= 2
