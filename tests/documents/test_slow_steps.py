"""When slow steps are told, and how."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.build import MS, ms, profile_of
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.step_history import PhaseOfStep, SlowStep, StepHistory
from torchprof_hooks.profiles.step_times import Bucket, StepTimes


def with_slow(
    slow_ms: int, steps: int = 20, loop_ms: int = 1_000, number: int = 7
) -> Profile:
    """A run with one slow step; the others take 10 ms."""
    data = PhaseOfStep("data", (slow_ms - 9) * MS, MS)
    phases = (data, PhaseOfStep("forward", 9 * MS, 9 * MS))
    slow = SlowStep(number, slow_ms * MS, 10 * MS, phases, "Net.a")
    usual = Bucket(1, steps - 1, (steps - 1) * 10 * MS)
    times = StepTimes(later=(usual, Bucket(2, 1, slow_ms * MS)))
    cells = {("Net", "forward"): ms(loop_ms)}
    history = StepHistory(slowest=(slow,))
    return profile_of(cells, {"Net": "Net"}, steps, times, step_history=history)


@pytest.mark.parametrize(
    ("run", "is_told"),
    [
        (with_slow(20), True),  # 1 % of the loop more than usual
        (with_slow(19), False),
        (with_slow(20, number=4), True),
        (with_slow(20, number=3), False),  # warms up
        (with_slow(60, loop_ms=50_000, number=3), True),
        (with_slow(60, loop_ms=50_000), True),  # 50 ms, and three times as long
        (with_slow(59, loop_ms=50_000), False),
        (with_slow(15, loop_ms=20), False),  # not 1.5 times
        (with_slow(100, steps=8), True),
        (with_slow(100, steps=7), False),  # what is usual is not known
    ],
)
def test_slow_steps_are_told_where_they_matter(run: Profile, is_told: bool) -> None:
    assert ("Slow steps: 1 of" in run.report()) == is_told
    assert ("took longer than usual" in run.report(full=True)) == is_told
    assert ('"slow_steps"' in run.to_json()) == is_told


def test_the_slowest_that_does_not_warm_up_is_told() -> None:
    run, other = with_slow(30, number=2), with_slow(20)
    slowest = (*run.step_history.slowest, *other.step_history.slowest)
    run = replace(run, step_history=StepHistory(slowest=slowest))
    assert "Slow steps: 1 of 20, +20.00ms, 2.0 %: step 7: 20.00ms" in run.report()
