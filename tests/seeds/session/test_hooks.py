"""The ready-made session hooks."""

from __future__ import annotations

import io
import re
from contextlib import suppress

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.seeds.session.recording import Clock
from torchprof_hooks import ReportHook, TrainingSession, profile

X = torch.ones(2, 3)


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
