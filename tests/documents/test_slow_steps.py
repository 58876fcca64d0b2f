"""When slow steps are told, and how."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.documents.made import MS, made, ms
from torchprof_hooks.documents.build.slow_steps import slow_answer
from torchprof_hooks.documents.build.view import view_of
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.step_history import PhaseOfStep, SlowStep, StepHistory
from torchprof_hooks.profiles.step_times import Bucket, StepTimes


def with_slow(slow_ms: int, steps: int = 20, loop_ms: int = 1_000) -> Profile:
    """A run with one slow step; the others take 10 ms."""
    data = PhaseOfStep("data", (slow_ms - 9) * MS, MS)
    phases = (data, PhaseOfStep("forward", 9 * MS, 9 * MS))
    slow = SlowStep(7, slow_ms * MS, 10 * MS, phases, "Net.a")
    usual = Bucket(1, steps - 1, (steps - 1) * 10 * MS)
    times = StepTimes(later=(usual, Bucket(2, 1, slow_ms * MS)))
    cells = {("Net", "forward"): ms(loop_ms)}
    history = StepHistory(slowest=(slow,))
    return made(cells, {"Net": "Net"}, steps, times, step_history=history)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("run", "is_told"),
    [
        (with_slow(20), True),  # 1 % of the loop more than usual
        (with_slow(19), False),
        (with_slow(59, loop_ms=50_000), False),
        (with_slow(60, loop_ms=50_000), True),  # 50 ms, and three times as long
        (with_slow(15, loop_ms=20), False),  # not 1.5 times
        (with_slow(100, steps=8), True),
        (with_slow(100, steps=7), False),  # what is usual is not known
    ],
)
def test_slow_steps_are_told_where_they_matter(run: Profile, is_told: bool) -> None:
    assert ("Slow steps: 1 of" in run.report()) == is_told
    assert ("took longer than usual" in run.report(full=True)) == is_told
    assert ('"slow_steps"' in run.to_json()) == is_told


def test_old_profiles_do_not_say_which_steps_were_slow() -> None:
    run = replace(with_slow(100), step_history=StepHistory())
    assert slow_answer(view_of(run)) is None


def test_the_slowest_step_is_told_with_what_it_did_differently() -> None:
    answer = slow_answer(view_of(with_slow(110)))
    assert answer is not None
    assert answer.answer == "1 of 20 took +100.00ms"
    assert answer.share == 0.1
    assert answer.evidence == (
        "step 7: 110.00ms, usual 10.00ms: data loading +100.00ms (own time of Net.a)"
    )
    assert answer.numbers["data_more_ns"] == 100 * MS
    assert answer.numbers["step"] == 7
