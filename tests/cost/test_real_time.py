"""By the machine's own clock: what is measured against what the same work takes without
us, in the same run. All other tests have clocks of their own.

Bounds are wide, and there is one attempt: whatever else the machine does takes its time
from both sides.
"""

from __future__ import annotations

import time
from time import perf_counter_ns
from typing import Any

import pytest
import torch
from torch import nn

import torchprof_hooks
from tests.functions import Runs
from torchprof_hooks import Profile
from torchprof_hooks.kernel.overhead import call_ns

pytestmark = pytest.mark.serial

#: Far more than a machine keeps a program waiting, now and then.
SLEEP_SECS = 0.3


class Sleeper(nn.Module):
    def __init__(self, forward_secs: float, backward_secs: float) -> None:
        super().__init__()
        self.seconds = forward_secs, backward_secs

    def forward(self, x: torch.Tensor) -> Any:
        forward, backward = self.seconds
        return Runs.apply(x, lambda: time.sleep(forward), lambda: time.sleep(backward))


def own_secs(found: Profile, name: str, phase: Any) -> float:
    (row,) = (row for row in found.rows() if row.name == name)
    return row.phases[phase].self_ns / 1e9


def test_sleep_is_in_the_row_and_phase_that_slept() -> None:
    model = nn.Sequential(
        Sleeper(SLEEP_SECS, 0.0), nn.Linear(4, 4), Sleeper(0.0, SLEEP_SECS)
    )
    with torchprof_hooks.profile() as prof:
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    found = prof.profile
    slept = {
        ("Sequential.0", "forward"): own_secs(found, "Sequential.0", "forward"),
        ("Sequential.2", "backward"): own_secs(found, "Sequential.2", "backward"),
    }
    assert min(slept.values()) >= SLEEP_SECS
    others = [
        totals.self_ns / 1e9
        for (path, phase), totals in found.cells.items()
        if (path[-1], phase) not in slept
    ]
    assert max(others) < SLEEP_SECS


def test_wall_time_is_that_of_an_independent_clock() -> None:
    outer_ns = perf_counter_ns()
    with torchprof_hooks.profile() as prof:
        inner_ns = perf_counter_ns()
        nn.Linear(4, 4)(torch.ones(2, 4))
        inner_ns = perf_counter_ns() - inner_ns
    outer_ns = perf_counter_ns() - outer_ns
    assert inner_ns <= prof.profile.wall_ns <= outer_ns


class Working(nn.Module):
    """Multiplies matrices, for some milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(256, 256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = torch.tanh(x @ self.weight)
        return x


def test_the_same_work_takes_as_long_as_without_us() -> None:
    """The shortest of many runs each, in turns: of these, no other program has any."""
    model, x = nn.Sequential(Working(), Working()), torch.rand(256, 256)
    bare_ns, measured_ns, attributed_ns = [], [], []
    for _ in range(20):
        start_ns = perf_counter_ns()
        model(x).sum().backward()
        bare_ns.append(perf_counter_ns() - start_ns)
        with torchprof_hooks.profile() as prof:
            start_ns = perf_counter_ns()
            model(x).sum().backward()
            measured_ns.append(perf_counter_ns() - start_ns)
        attributed_ns.append(prof.profile.attributed_ns)
    # Not one by one: the very first run does much for the first time.
    assert min(attributed_ns) > 0.5 * min(bare_ns)
    assert min(measured_ns) < 2 * min(bare_ns)


class Parent(nn.Module):
    """Has so many children that do nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Identity() for _ in range(200))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in self.inner:
            x = child(x)
        return x


def test_what_measuring_costs_is_about_what_is_said() -> None:
    """It is said as "at least"."""
    model, x = Parent(), torch.ones(2, 4)
    bare_ns: list[int] = []
    measured_ns: list[int] = []
    prof = torchprof_hooks.profile()  # one, to which modules are new only once
    calls = 1 + len(model.inner)
    for _ in range(100):
        start_ns = perf_counter_ns()
        model(x)
        bare_ns.append(perf_counter_ns() - start_ns)
        with prof:
            start_ns = perf_counter_ns()
            model(x)
            measured_ns.append(perf_counter_ns() - start_ns)
    added_ns = min(measured_ns) - min(bare_ns)
    assert added_ns / 10 < calls * call_ns() < 3 * added_ns
