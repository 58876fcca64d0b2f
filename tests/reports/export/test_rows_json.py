from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import FUNCTIONS, STEP, hand_built, timed
from tests.profiles.test_merge import profiles
from torchprof_hooks import Profile
from torchprof_hooks.profiles.memory import MemorySummary, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import GROUPINGS, Grouping
from torchprof_hooks.profiles.step_times import Bucket, StepTimes
from torchprof_hooks.profiles.totals import Totals
from torchprof_hooks.reports.export.rows import render_json as render


def rendered(profile: Profile, by: Grouping = "module") -> Any:
    return json.loads(render(profile, by))


def test_a_whole_document() -> None:
    profile = hand_built(
        {("Net", "forward"): timed(10, 20, 30)},
        {"Net": ModuleInfo("MyNet", aliases=("Other",), compiled=True)},
        steps=3,
        aborted_calls=1,
        undivided_passes=2,
        overhead_ns=4,
        unmeasured_steps=5,
        unmeasured_ns=600,
    )
    buckets = (Bucket(2, 2, 40), Bucket(9, 3, 150))
    profile = replace(profile, step_times=StepTimes(1, 90, buckets, 7, 14))

    assert rendered(profile) == {
        "by": "module",
        "wall_ns": 60,
        "steps": 3,
        "overhead_ns": 4,
        "aborted_calls": 1,
        "undivided_passes": 2,
        "unmeasured_steps": 5,
        "unmeasured_ns": 600,
        "not_measured": [],
        "step_times": {
            "first_steps": 1,
            "first_ns": 90,
            "later_steps": 5,
            "later_ns": 190,
            "median_ns": 50,
            "percentile_90_ns": 50,
            "evaluations": 7,
            "evaluation_ns": 14,
            "first_evaluations": 0,
            "first_evaluation_ns": 0,
        },
        "devices": [],
        "device_asked": 0,
        "device_waits": 0,
        "memory": None,
        "collectives": [],
        "rows": [
            {
                "name": "Net",
                "class_name": "MyNet",
                "kind": "module",
                "module": "Net",
                "compiled": True,
                "aliases": ["Other"],
                "calls": 3,
                "self_ns": 60,
                "cumulative_ns": 60,
                "phases": {
                    "forward": {
                        "calls": 3,
                        "self_ns": 60,
                        "cumulative_ns": 60,
                        "mean_ns": 20.0,
                        "std_ns": pytest.approx((200 / 3) ** 0.5),
                        "min_ns": 10,
                        "max_ns": 30,
                    }
                },
            }
        ],
    }


def test_device_times_and_bytes_are_there_if_they_were_measured() -> None:
    profile = hand_built(
        {
            ("Net", "forward"): Totals(1, 5, device_self_ns=7),
            ("Net > Net.a", "forward"): Totals(
                1, 5, device_self_ns=2, memory=MemoryTotals(1, 2, 3, 4)
            ),
        },
        {"Net": "Net", "Net.a": "Linear"},
        devices=("cuda",),
        memory=MemorySummary("cuda:0", False, 99, ("Net",), "forward"),
    )

    document = rendered(profile)
    forward = document["rows"][0]["phases"]["forward"]

    assert document["memory"]["peak_bytes"] == 99
    assert document["memory"]["peaks_are_lower_bounds"] is False
    on_cpu = replace(profile, memory=MemorySummary("cpu", True, 99))
    assert rendered(on_cpu)["memory"]["peaks_are_lower_bounds"] is True
    assert (forward["device_self_ns"], forward["device_cumulative_ns"]) == (7, 9)
    assert (forward["self_used_bytes"], forward["cumulative_used_bytes"]) == (0, 1)
    assert forward["cumulative_acquired_bytes"] == 2
    assert forward["cumulative_retained_bytes"] == 3
    assert document["rows"][1]["phases"]["forward"]["peak_bytes"] == 4


@pytest.mark.parametrize("by", GROUPINGS)
def test_rows_are_those_of_the_profile(by: Grouping) -> None:
    document = rendered(FUNCTIONS, by)

    assert document["by"] == by
    for record, row in zip(document["rows"], FUNCTIONS.rows(by), strict=True):
        assert record["name"] == row.name
        assert record["calls"] == row.calls
        assert record["self_ns"] == row.self_ns
        assert record["cumulative_ns"] == row.cumulative_ns


def test_phases_without_anything_are_left_out() -> None:
    [outside] = [r for r in rendered(STEP)["rows"] if r["kind"] == "outside"]

    assert list(outside["phases"]) == ["outside"]


def test_an_unknown_grouping_is_refused() -> None:
    with pytest.raises(ValueError, match="by must be"):
        render(STEP, "layer")  # type: ignore[arg-type]


@given(profiles, st.sampled_from(GROUPINGS))
def test_own_times_add_up(profile: Profile, by: Grouping) -> None:
    rows = rendered(profile, by)["rows"]

    self_ns = sum(totals.self_ns for totals in profile.cells.values())
    assert sum(row["self_ns"] for row in rows) == self_ns
    assert self_ns == sum(
        numbers["self_ns"] for row in rows for numbers in row["phases"].values()
    )


def test_functions_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Among all descriptions: for each record, that took longer than all else.
    names = [f"Net.{number}" for number in range(20)]
    profile = hand_built(
        {(name, "forward"): timed(10) for name in names},
        dict.fromkeys(names, "Linear"),
    )
    asked: list[Profile] = []

    def has_functions(self: Profile) -> bool:
        asked.append(self)
        return False

    monkeypatch.setattr(Profile, "has_functions", property(has_functions))
    assert len(rendered(profile)["rows"]) == len(names)
    assert len(asked) == 1
