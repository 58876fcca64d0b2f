"""TensorFlow's rules for what happens every so many steps or seconds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.seeds.session.recording import Clock
from torchprof_hooks import SecondOrStepTimer


def triggered(timer: SecondOrStepTimer, steps: range | list[int]) -> list[int]:
    """The steps at which it was due, if it is triggered whenever it is."""
    due = []
    for step in steps:
        if timer.should_trigger_for_step(step):
            timer.update_last_triggered_step(step)
            due.append(step)
    return due


def test_it_is_due_at_the_first_step_that_is_asked_for() -> None:
    timer = SecondOrStepTimer(every_steps=3)
    assert timer.should_trigger_for_step(17)
    assert timer.should_trigger_for_step(17)  # asking changes nothing
    assert timer.last_triggered_step() is None


@pytest.mark.parametrize(
    ("every_steps", "steps", "expected"),
    [
        (1, range(1, 5), [1, 2, 3, 4]),
        (3, range(1, 9), [1, 4, 7]),
        (2.5, range(1, 9), [1, 4, 7]),
        (7, range(0, 40, 5), [0, 10, 20, 30]),  # jumps over the due step
        (4, [1, 2, 8, 9, 11, 12], [1, 8, 12]),  # a late trigger shifts the next
        (2, [1, 1, 1, 3, 3], [1, 3]),  # once per step number
        (5, [100, 104, 105], [100, 105]),  # resumed
        (float("inf"), range(1, 9), [1]),
    ],
)
def test_every_steps(every_steps: float, steps: Any, expected: list[int]) -> None:
    assert triggered(SecondOrStepTimer(every_steps=every_steps), steps) == expected


def test_every_secs_from_the_last_trigger() -> None:
    clock = Clock()
    timer = SecondOrStepTimer(every_secs=2.0, clock=clock)
    due = []
    for step, now in enumerate([0.0, 2.0, 2.1, 3.9, 4.0], start=1):  # inclusive
        clock.now = now
        due += triggered(timer, [step, step])  # once per step number
    clock.now = 6.0
    assert not timer.should_trigger_for_step(5)
    assert due == [1, 2, 5]


def test_update_tells_what_has_passed() -> None:
    clock = Clock()
    timer = SecondOrStepTimer(every_steps=1, clock=clock)
    assert timer.update_last_triggered_step(1) == (None, None)
    clock.now += 2.5
    assert timer.update_last_triggered_step(5) == (2.5, 4)
    clock.now += 0.5
    assert timer.update_last_triggered_step(7) == (0.5, 2)
    assert timer.last_triggered_step() == 7
    timer.reset()
    assert timer.last_triggered_step() is None
    assert timer.update_last_triggered_step(8) == (None, None)
