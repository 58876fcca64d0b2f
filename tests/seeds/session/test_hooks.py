"""The ready-made session hooks."""

from __future__ import annotations

import io
import re
import sys
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.seeds.session.recording import Clock
from torchprof_hooks import ReportHook, StepTimerHook, TrainingSession, profile

X = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("every", "start", "step_s", "printed"),
    [
        ({"every_steps": 4}, 0, 0.5, ["step 5: 2.00", "step 9: 2.00"]),
        ({"every_secs": 5}, 10, 0.8, ["step 18: 1.25"]),
    ],
)
def test_step_timer(
    every: dict[str, Any], start: int, step_s: float, printed: list[str]
) -> None:
    clock, file = Clock(), io.StringIO()
    hook = StepTimerHook(**every, file=file, clock=clock)

    def step() -> None:
        clock.now += step_s

    with TrainingSession([hook], start) as session:
        for _ in range(10):
            session.run(step)
        assert hook.steps_per_sec == pytest.approx(1 / step_s)
    assert file.getvalue() == "".join(f"{line} steps/s\n" for line in printed)


@pytest.mark.parametrize("fails", [False, True])
def test_progress_bar(fails: bool) -> None:
    file = io.StringIO()
    hook = StepTimerHook(progress=True, total=5, file=file)
    with suppress(ValueError), TrainingSession([hook], start_step=2) as session:
        for _ in range(3):
            session.run(int)
        if fails:
            raise ValueError("planted")
    assert "5/5" in file.getvalue()
    assert file.getvalue().endswith("\n")  # closed


def test_progress_bar_without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(ImportError, match="needs tqdm: install it"):
        StepTimerHook(progress=True)


def headings(file: io.StringIO) -> list[str]:
    return [line for line in file.getvalue().splitlines() if line.startswith("steps")]


@pytest.mark.parametrize("steps", [4, 5])
def test_report_every_steps(steps: int) -> None:
    """The last one is of what is left, if there is anything."""
    model, file = nn.Linear(3, 3), io.StringIO()
    hook = ReportHook(every_steps=2, file=file)
    with TrainingSession([hook]) as session:
        for _ in range(steps):
            session.run(model, X)
    told = ["steps 1 to 2", "steps 3 to 4", "steps 5 to 5"][: steps - 2]
    assert headings(file) == told
    assert file.getvalue().count("\nHottest module: Linear, ") == len(told)
    if steps == 5:
        assert hook.profile is not None
        assert [r.calls for r in hook.profile.rows() if r.kind == "module"] == [1]


@NATIVE_CORE
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


@pytest.mark.parametrize(
    ("fails_at", "is_caught", "told"),
    [(3, False, ["steps 1 to 3"]), (2, True, ["steps 1 to 2", "steps 3 to 5"])],
    ids=["ends training", "is caught"],
)
def test_what_was_measured_before_an_exception_is_reported(
    fails_at: int, is_caught: bool, told: list[str]
) -> None:
    model, file = nn.Linear(3, 3), io.StringIO()
    with (
        suppress(TypeError),
        TrainingSession([ReportHook(every_steps=100, file=file)]) as session,
    ):
        for step in range(6):
            with suppress(*[TypeError] * is_caught):
                session.run(model, None if step == fails_at else X)
    assert headings(file) == told
    assert "1 call ended by an exception" in file.getvalue().replace("\n  ", " ")
