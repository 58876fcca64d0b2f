"""The tables of hooks that measure time and memory, as Chainer prints them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers import table
from torchprof_hooks.documents.export.hook_table import render_bytes, render_times

FORWARD = {"elapsed_time": "ElapsedTime"}
BACKWARD = {**FORWARD, "backward_time": "BackwardTime"}

TIMES: dict[str, Any] = {
    "Linear": {"elapsed_time": 41.42, "occurrence": 2100},
    "ReLU": {"elapsed_time": 0.00025, "occurrence": 1},
}
TRAINED: dict[str, Any] = {
    "Linear": {"elapsed_time": 5e-6, "occurrence": 2, "backward_time": 0.0045},
    "Dropout": {"elapsed_time": 3e-6, "occurrence": 2, "backward_time": 0.0},
}
BYTES: dict[str, Any] = {
    "linear": {"used_bytes": 1_572_864, "acquired_bytes": 2_097_152, "occurrence": 20},
    "relu": {"used_bytes": 512, "acquired_bytes": -4096, "occurrence": 1},
}


def times(summary: dict[str, Any], unit: str, columns: Any = FORWARD) -> str:
    return render_times("Mine", "LinkName", summary, unit, columns)


def memory(summary: dict[str, Any], unit: str, note: str = "") -> str:
    return render_bytes("Mine", "FunctionName", summary, unit, note)


TABLES: dict[str, tuple[str, str]] = {
    "times in one unit": (
        times(TRAINED, "auto", BACKWARD),
        """
LinkName  ElapsedTime  BackwardTime  Occurrence
  Linear       0.01ms        4.50ms           2
 Dropout       0.00ms        0.00ms           2
""",
    ),
    "each time in its own": (
        times(TIMES, "auto_foreach"),
        """
LinkName  ElapsedTime  Occurrence
  Linear     41.42sec        2100
    ReLU     250.00us           1
""",
    ),
    "each column of bytes in one unit": (
        memory({"relu": {**BYTES["relu"], "used_bytes": -3_355_443}}, "auto", "Net."),
        """
FunctionName  UsedBytes  AcquiredBytes  Occurrence
        relu    -3.20MB        -4.00KB           1
Net.
""",
    ),
    "all bytes in one unit": (
        memory(BYTES, "KB"),
        """
FunctionName  UsedBytes  AcquiredBytes  Occurrence
      linear  1536.00KB      2048.00KB          20
        relu     0.50KB        -4.00KB           1
""",
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_whole_table(name: str) -> None:
    text, expected = TABLES[name]
    assert text == table(expected)


@pytest.mark.parametrize(
    ("further", "columns"),
    [
        ({"peak_bytes": 3}, "PeakBytes"),
        ({"retained_bytes": 3}, "RetainedBytes"),
        ({"retained_bytes": 3, "peak_bytes": 3}, "PeakBytes RetainedBytes"),
    ],
)
def test_bytes_have_columns_of_what_was_measured(
    further: dict[str, int], columns: str
) -> None:
    header, row = memory(
        {"linear": {**BYTES["linear"], **further}}, "auto"
    ).splitlines()
    head = f"FunctionName UsedBytes AcquiredBytes {columns} Occurrence"
    assert header.split() == head.split()
    texts = ["linear", "1.50MB", "2.00MB", *["3.00B"] * len(further), "20"]
    assert row.split() == texts


@pytest.mark.parametrize("unit", ["auto", "auto_foreach"])
def test_an_empty_summary_says_so(unit: str) -> None:
    said = "Mine: no module was called, there is nothing to report."
    assert times({}, unit, BACKWARD) == said
    assert memory({}, unit, note="Unused.") == said.replace("module", "function")
