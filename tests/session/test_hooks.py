"""The ready-made session hooks."""

from __future__ import annotations

import io
import re
import sys
from contextlib import suppress

import pytest
import torch
from torch import nn

from tests.session.recording import Clock
from torchprof_hooks import (
    ReportHook,
    StepTimerHook,
    TrainingSession,
    profile,
)

X = torch.ones(2, 3)


def test_step_timer() -> None:
    clock, file = Clock(), io.StringIO()
    hook = StepTimerHook(every_steps=4, file=file, clock=clock)

    def step() -> None:
        clock.now += 0.5

    with TrainingSession([hook]) as session:
        for _ in range(10):
            session.run(step)
        assert hook.steps_per_sec == 2.0
    assert file.getvalue() == "step 5: 2.00 steps/s\nstep 9: 2.00 steps/s\n"


def test_step_timer_by_seconds() -> None:
    clock, file = Clock(), io.StringIO()
    hook = StepTimerHook(every_secs=2, file=file, clock=clock)

    def step() -> None:
        clock.now += 0.8

    with TrainingSession([hook], start_step=10) as session:
        for _ in range(5):
            session.run(step)
    assert file.getvalue() == "step 14: 1.25 steps/s\n"


@pytest.mark.parametrize("fails", [False, True])
def test_progress_bar(fails: bool) -> None:
    file = io.StringIO()
    hook = StepTimerHook(progress=True, total=5, file=file)

    def train() -> None:
        with TrainingSession([hook], start_step=2) as session:
            for _ in range(3):
                session.run(int)
            if fails:
                raise ValueError("planted")

    if fails:
        with pytest.raises(ValueError, match="planted"):
            train()
    else:
        train()
    assert "5/5" in file.getvalue()
    assert file.getvalue().endswith("\n")  # closed


def test_progress_bar_without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="needs tqdm: install it"):
        StepTimerHook(progress=True)


def headings(file: io.StringIO) -> list[str]:
    return [line for line in file.getvalue().splitlines() if line.startswith("steps")]


def test_report_every_steps() -> None:
    model, file = nn.Linear(3, 3), io.StringIO()
    hook = ReportHook(every_steps=2, file=file)
    with TrainingSession([hook]) as session:
        for _ in range(5):
            session.run(model, X)
    assert headings(file) == ["steps 1 to 2", "steps 3 to 4", "steps 5 to 5"]
    assert file.getvalue().count("\nHottest module: Linear, ") == 3
    assert hook.profile is not None
    assert [row.calls for row in hook.profile.rows() if row.kind == "module"] == [1]


def test_no_empty_report_at_the_end() -> None:
    model, file = nn.Linear(3, 3), io.StringIO()
    with TrainingSession([ReportHook(every_steps=2, file=file)]) as session:
        for _ in range(4):
            session.run(model, X)
    assert headings(file) == ["steps 1 to 2", "steps 3 to 4"]


def test_report_every_seconds_of_functions() -> None:
    clock, file = Clock(), io.StringIO()
    model = nn.Linear(3, 3)

    def step() -> None:
        clock.now += 4
        model(X)

    profiler = profile(functions=True)
    hook = ReportHook(every_secs=10, profiler=profiler, file=file, clock=clock)
    with TrainingSession([hook], start_step=7) as session:
        for _ in range(4):
            session.run(step)
    assert headings(file) == ["steps 8 to 10", "steps 11 to 11"]
    assert re.search(r"\nfunction .*\nlinear +3 ", file.getvalue())
    [linear] = [row for row in profiler.profile.rows() if row.kind == "module"]
    assert linear.calls == 4  # all intervals


def test_what_was_measured_is_reported_after_an_exception() -> None:
    model, file = nn.Linear(3, 3), io.StringIO()

    def train() -> None:
        with TrainingSession([ReportHook(every_steps=100, file=file)]) as session:
            for _ in range(3):
                session.run(model, X)
            session.run(model, None)

    with pytest.raises(TypeError):
        train()
    assert headings(file) == ["steps 1 to 3"]
    assert "1 call ended by an exception" in file.getvalue().replace("\n  ", " ")


def test_a_step_that_raises_does_not_end_the_measuring() -> None:
    model, file = nn.Linear(3, 3), io.StringIO()
    with TrainingSession([ReportHook(every_steps=100, file=file)]) as session:
        for step in range(6):
            with suppress(TypeError):
                session.run(model, None if step == 2 else X)
    assert headings(file) == ["steps 1 to 2", "steps 3 to 5"]
