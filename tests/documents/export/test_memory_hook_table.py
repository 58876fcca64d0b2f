from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import table
from torchprof_hooks.documents.export.hook_table import render_bytes as render

#: 1.5 MB and 2 MB; 512 B and nothing.
SUMMARY: dict[str, Any] = {
    "linear": {"used_bytes": 1_572_864, "acquired_bytes": 2_097_152, "occurrence": 20},
    "relu": {"used_bytes": 512, "acquired_bytes": 0, "occurrence": 1},
}


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (
            "B",
            """
FunctionName    UsedBytes  AcquiredBytes  Occurrence
      linear  1572864.00B    2097152.00B          20
        relu      512.00B          0.00B           1
""",
        ),
        (
            "KB",
            """
FunctionName  UsedBytes  AcquiredBytes  Occurrence
      linear  1536.00KB      2048.00KB          20
        relu     0.50KB         0.00KB           1
""",
        ),
        (
            "auto",
            """
FunctionName  UsedBytes  AcquiredBytes  Occurrence
      linear     1.50MB         2.00MB          20
        relu     0.00MB         0.00MB           1
""",
        ),
        (
            "auto_foreach",
            """
FunctionName  UsedBytes  AcquiredBytes  Occurrence
      linear     1.50MB         2.00MB          20
        relu    512.00B          0.00B           1
""",
        ),
    ],
)
def test_the_table_in_several_units(unit: str, expected: str) -> None:
    assert render("Memory", "FunctionName", SUMMARY, unit) == table(expected)


def test_auto_chooses_for_each_column() -> None:
    summary = {
        "Linear": {"used_bytes": 3 * 1024, "acquired_bytes": 1024**3, "occurrence": 1},
        "ReLU": {"used_bytes": 1024, "acquired_bytes": 0, "occurrence": 1},
    }

    assert render("Memory", "LinkName", summary, "auto") == table("""
LinkName  UsedBytes  AcquiredBytes  Occurrence
  Linear     3.00KB         1.00GB           1
    ReLU     1.00KB         0.00GB           1
""")


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (
            "auto",  # the column's largest magnitude decides
            """
LinkName  UsedBytes  AcquiredBytes  Occurrence
  Linear    -3.20MB         0.00KB           1
    ReLU     0.50MB        -4.00KB           1
""",
        ),
        (
            "auto_foreach",
            """
LinkName  UsedBytes  AcquiredBytes  Occurrence
  Linear    -3.20MB          0.00B           1
    ReLU   512.00KB        -4.00KB           1
""",
        ),
    ],
)
def test_bytes_may_be_negative(unit: str, expected: str) -> None:
    summary = {
        "Linear": {"used_bytes": -3_355_443, "acquired_bytes": 0, "occurrence": 1},
        "ReLU": {"used_bytes": 524_288, "acquired_bytes": -4096, "occurrence": 1},
    }

    assert render("Memory", "LinkName", summary, unit) == table(expected)


def test_further_columns_are_there_if_they_were_measured() -> None:
    summary = {
        "Linear": {**SUMMARY["linear"], "retained_bytes": 1024, "peak_bytes": 2048}
    }

    assert render("Memory", "LinkName", summary, "auto") == table("""
LinkName  UsedBytes  AcquiredBytes  PeakBytes  RetainedBytes  Occurrence
  Linear     1.50MB         2.00MB     2.00KB         1.00KB          20
""")


@pytest.mark.parametrize(
    ("field", "column"),
    [("peak_bytes", "PeakBytes"), ("retained_bytes", "RetainedBytes")],
)
def test_one_further_column(field: str, column: str) -> None:
    summary = {"Linear": {**SUMMARY["linear"], field: 3}}

    header, row = render("Memory", "LinkName", summary, "auto").splitlines()

    assert header.split() == [
        "LinkName",
        "UsedBytes",
        "AcquiredBytes",
        column,
        "Occurrence",
    ]
    assert row.split() == ["Linear", "1.50MB", "2.00MB", "3.00B", "20"]


def test_a_measurement_that_some_rows_lack_is_not_left_out_silently() -> None:
    summary = {**SUMMARY, "tanh": {**SUMMARY["relu"], "peak_bytes": 1}}

    with pytest.raises(KeyError, match="peak_bytes"):
        render("Memory", "FunctionName", summary, "auto")


def test_rows_are_in_the_order_of_the_summary() -> None:
    reverse = dict(reversed(SUMMARY.items()))

    lines = render("Memory", "FunctionName", reverse, "auto").splitlines()

    assert [line.split()[0] for line in lines] == ["FunctionName", "relu", "linear"]


def test_names_that_look_like_numbers_or_markup_stay_as_they_are() -> None:
    sums = {"used_bytes": 1, "acquired_bytes": 0, "occurrence": 10**11}

    assert render("Memory", "LinkName", {"1e5": sums, "_x_": sums}, "B") == table("""
LinkName  UsedBytes  AcquiredBytes    Occurrence
     1e5      1.00B          0.00B  100000000000
     _x_      1.00B          0.00B  100000000000
""")


def test_the_note_is_a_line_below() -> None:
    text = render("Memory", "FunctionName", SUMMARY, "MB", note="Used bytes are net.")

    assert text == table("""
FunctionName  UsedBytes  AcquiredBytes  Occurrence
      linear     1.50MB         2.00MB          20
        relu     0.00MB         0.00MB           1
Used bytes are net.
""")


@pytest.mark.parametrize(
    ("name_header", "called"), [("LinkName", "module"), ("FunctionName", "function")]
)
@pytest.mark.parametrize("unit", ["auto", "auto_foreach", "MB"])
def test_an_empty_summary_says_so(name_header: str, called: str, unit: str) -> None:
    assert render("Mine", name_header, {}, unit, note="Unused.") == (
        f"Mine: no {called} was called, there is nothing to report."
    )


@pytest.mark.parametrize("summary", [SUMMARY, {}])
def test_an_unknown_unit_is_refused(summary: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match="unit must be 'auto', 'auto_foreach', 'B', 'KB'"
    ):
        render("Memory", "LinkName", summary, "sec")
