from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import table
from torchprof_hooks.documents.export.hook_table import render_times as render

FORWARD = {"elapsed_time": "ElapsedTime"}
BACKWARD = {**FORWARD, "backward_time": "BackwardTime"}

SUMMARY: dict[str, Any] = {
    "Linear": {"elapsed_time": 41.42, "occurrence": 2100},
    "ReLU": {"elapsed_time": 0.00025, "occurrence": 1},
}

TRAINED: dict[str, Any] = {
    "Linear": {"elapsed_time": 0.002, "occurrence": 2, "backward_time": 0.0045},
    "Dropout": {"elapsed_time": 3e-6, "occurrence": 2, "backward_time": 0.0},
}


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (
            "sec",
            """
LinkName  ElapsedTime  Occurrence
  Linear     41.42sec        2100
    ReLU      0.00sec           1
""",
        ),
        (
            "ms",
            """
LinkName  ElapsedTime  Occurrence
  Linear   41420.00ms        2100
    ReLU       0.25ms           1
""",
        ),
        (
            "us",
            """
LinkName    ElapsedTime  Occurrence
  Linear  41420000.00us        2100
    ReLU       250.00us           1
""",
        ),
        (
            "ns",
            """
LinkName       ElapsedTime  Occurrence
  Linear  41420000000.00ns        2100
    ReLU       250000.00ns           1
""",
        ),
        (
            "auto",  # the largest value is at least 1 in sec
            """
LinkName  ElapsedTime  Occurrence
  Linear     41.42sec        2100
    ReLU      0.00sec           1
""",
        ),
        (
            "auto_foreach",
            """
LinkName  ElapsedTime  Occurrence
  Linear     41.42sec        2100
    ReLU     250.00us           1
""",
        ),
    ],
)
def test_the_table_in_every_unit(unit: str, expected: str) -> None:
    assert render("TimerHook", "LinkName", SUMMARY, unit, FORWARD) == table(expected)


def test_with_backward_there_is_one_more_column() -> None:
    assert render("TimerHook", "LinkName", TRAINED, "us", BACKWARD) == table("""
LinkName  ElapsedTime  BackwardTime  Occurrence
  Linear    2000.00us     4500.00us           2
 Dropout       3.00us        0.00us           2
""")


def test_auto_looks_at_backward_times_too() -> None:
    summary: dict[str, Any] = {
        "Linear": {"elapsed_time": 5e-6, "occurrence": 1, "backward_time": 0.002}
    }

    assert render("TimerHook", "LinkName", summary, "auto", BACKWARD) == table("""
LinkName  ElapsedTime  BackwardTime  Occurrence
  Linear       0.01ms        2.00ms           1
""")


def test_rows_are_in_the_order_of_the_summary() -> None:
    reverse = dict(reversed(SUMMARY.items()))

    lines = render("TimerHook", "LinkName", reverse, "auto", FORWARD).splitlines()

    assert [line.split()[0] for line in lines] == ["LinkName", "ReLU", "Linear"]


def test_a_long_name_widens_its_column() -> None:
    summary = {"A" * 12: {"elapsed_time": 1e-9, "occurrence": 10**11}}

    assert render("TimerHook", "LinkName", summary, "auto", FORWARD) == table("""
    LinkName  ElapsedTime    Occurrence
AAAAAAAAAAAA       1.00ns  100000000000
""")


def test_names_that_look_like_numbers_or_markup_stay_as_they_are() -> None:
    summary = {
        name: {"elapsed_time": 1.0, "occurrence": 1} for name in ("1e5", "Net#2", "_x_")
    }

    assert render("TimerHook", "LinkName", summary, "sec", FORWARD) == table("""
LinkName  ElapsedTime  Occurrence
     1e5      1.00sec           1
   Net#2      1.00sec           1
     _x_      1.00sec           1
""")


@pytest.mark.parametrize("unit", ["auto", "auto_foreach", "sec"])
def test_an_empty_summary_says_so(unit: str) -> None:
    assert render("Mine", "LinkName", {}, unit, BACKWARD) == (
        "Mine: no module was called, there is nothing to report."
    )


@pytest.mark.parametrize("summary", [SUMMARY, {}])
def test_an_unknown_unit_is_refused(summary: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match="unit must be 'auto', 'auto_foreach', 'sec', "
    ):
        render("TimerHook", "LinkName", summary, "minutes", FORWARD)
