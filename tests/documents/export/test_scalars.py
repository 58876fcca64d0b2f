"""Profiles as numbers with names, which are written down while training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given
from torch import nn

from tests.build import FUNCTIONS, STEP, own, profile_of, with_fields
from tests.fake_clock import MS, burn
from tests.profiles.test_merge import profiles
from torchprof_hooks import Profile, profile
from torchprof_hooks.profiles.memory import MemorySummary
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.step_times import Bucket, StepTimes, bucket_of


def in_ns(found: Mapping[str, float], kind: str) -> dict[str, int]:
    """Those that begin so, without the beginning and the unit."""
    return {
        name.removeprefix(kind).removesuffix("_ms"): round(value * MS)
        for name, value in found.items()
        if name.startswith(kind)
    }


def of_modules(own_ns: Mapping[str, int], **classes: str) -> dict[str, int]:
    """The scalars of a Net whose modules take so long in forward; Linears, unless they
    are of other classes."""
    cells: dict[tuple[str, Phase], Any] = {
        (f"Net > Net.{name}", "forward"): own(ns) for name, ns in own_ns.items()
    }
    infos = {f"Net.{name}": classes.get(name, "Linear") for name in own_ns}
    found = profile_of(cells, {"Net": "Net", **infos}).scalars(top=2)
    return in_ns(found, "module/Net.")


# Which numbers there are


def test_own_times_of_phases_and_modules_in_a_step() -> None:
    found = with_fields(STEP, steps=2).scalars()
    assert found["steps"] == 2
    times = {name: ns for name, ns in in_ns(found, "time/").items() if ns}
    assert times == {
        "forward": 30,
        "backward": 32,  # of 65 in two steps
        "recompute": 10,
        "optimizer": 4,
        "outside": 6,
        "profiler": 2,  # of 3
    }
    # Halves, in all 10 + 1: they are rounded here to the even number.
    assert in_ns(found, "module/Net/") == {"forward": 5, "backward": 0}
    inner = in_ns(found, "module/Net.b.a/")
    assert inner == {"forward": 8, "backward": 10, "recompute": 7}


@given(profiles)
def test_phases_are_those_of_the_profile(found: Profile) -> None:
    times = found.phase_times_ns()
    scalars = found.scalars(top=0)
    steps = max(found.steps, 1)
    for phase in get_args(Phase):
        expected = times[phase] / 1e6 / steps
        assert scalars[f"time/{phase}_ms"] == pytest.approx(expected, rel=1e-9)
    assert not in_ns(scalars, "module/")


@pytest.mark.parametrize("found", [STEP, FUNCTIONS], ids=["modules", "functions"])
def test_modules_are_those_that_rows_have_with_their_functions(found: Profile) -> None:
    rows = {row.name: row for row in found.rows()}
    times = in_ns(found.scalars(), "module/")
    assert len(times) > 5
    for name, own_ns in times.items():
        module, phase = name.split("/")
        assert rows[module].phases[phase].self_ns == own_ns  # type: ignore[index]


def test_layers_of_a_kind_are_one_and_the_hottest_come() -> None:
    blocks = {f"blocks.{n}.fc": n + 1 for n in range(4)}
    assert of_modules({**blocks, "head": 9, "small": 2}) == {
        "blocks._.fc-Linear/forward": 10,
        "head/forward": 9,
    }


def test_no_name_has_characters_that_trackers_refuse() -> None:
    assert of_modules({'"ü" *': 3}) == {"_____/forward": 3}


def test_steps_evaluations_and_memory() -> None:
    times = StepTimes(
        first_steps=1,
        first_ns=50 * MS,
        later=tuple(Bucket(bucket_of(ms * MS), 2, 2 * ms * MS) for ms in (10, 20)),
        evaluations=4,
        evaluation_ns=12 * MS,
    )
    memory = MemorySummary("cpu", peak_bytes=3 * 2**19)
    found = replace(with_fields(STEP, step_times=times), memory=memory).scalars()
    assert found["time/step_ms"] == 15
    assert found["time/step_median_ms"] == 10
    assert found["time/step_p90_ms"] == 20
    assert found["time/evaluation_ms"] == 3
    assert found["memory/peak_mb"] == 1.5
    unavailable = replace(STEP, memory=MemorySummary(unavailable="no"))
    assert "memory/peak_mb" not in unavailable.scalars()


# While training


class Busy(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        burn(3)
        return super().forward(x)


@pytest.mark.usefixtures("clock")
def test_since_an_earlier_profile_only_what_came_later_counts() -> None:
    model = nn.Sequential(Busy(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train(steps: int, pause_ms: float) -> None:
        for _ in range(steps):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            burn(pause_ms)

    with profile() as prof:
        train(3, 2)
        before = prof.profile
        train(5, 6)
        later = prof.scalars(since=before)
        of_all = prof.scalars()
    assert (later["steps"], of_all["steps"]) == (5, 8)
    assert later["time/forward_ms"] == pytest.approx(3)
    assert later["module/Sequential._-Busy/forward_ms"] == pytest.approx(3)
    assert later["time/outside_ms"] == pytest.approx(6)
    assert of_all["time/outside_ms"] == pytest.approx((3 * 2 + 5 * 6) / 8)
    # The first step after that has the pause of the one before, which was a short one.
    assert later["time/step_ms"] == pytest.approx((5 * 3 + 2 + 4 * 6) / 5)
