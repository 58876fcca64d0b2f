"""What the verdict of `make gpu-check` makes of results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gpu_verdict
import pytest
import results
from gpu_parts import Outcome
from gpu_results import file_name
from page.gpu_aims import ACCURACY, AIMS, COST, COUNTS, PARTS, TESTS, verdict_table


def verdicts(figures: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Measured, and verdict, by the beginning of the aim."""
    table = verdict_table(
        lambda part: {"found": figures[part]} if part in figures else None
    )
    assert len(table.rows) == len(AIMS)
    return {str(text): list(rest) for text, *rest in table.rows}


def test_nothing_is_measured() -> None:
    for measured, verdict in verdicts({}).values():
        assert (measured, verdict) == ("", "not measured")


def test_aims_are_met_or_missed() -> None:
    row = {"kernels_us": 100.0, "stamps_us": 102.0, "traced_us": None}
    found = verdicts(
        {
            COST: {"GPT-2 small": {"profile()": {"ratio": 1.2}}},
            ACCURACY: {
                "GPT-2": [row, row | {"stamps_us": 198.6}, row],
                "small": [],
                "ResNet": [row | {"stamps_us": 96.0, "traced_us": 100.5}],
            },
            COUNTS: {"per_call": {"event records": 2.0, "queries": 0.1}},
        }
    )
    said = {text[:40]: rest for text, rest in found.items()}
    assert said["the small GPT-2 step takes at most 1.15 "] == ["1.200", "missed"]
    assert said["of modules with more than 100 us of kern"] == ["0.5 % (ResNet)", "met"]
    assert said["... and stamps at most 3 %"] == [
        "2.0 % (GPT-2), 4.0 % (ResNet)",
        "missed on ResNet",
    ]
    assert said["a module call records at most 2 events"] == ["2.00", "met"]
    assert said["... asks the device at most once in 17 c"] == ["0.100", "missed"]
    assert said["... makes none"] == ["", "not measured"]


def test_failed_tests_and_parts_show() -> None:
    fine = verdicts(
        {
            TESTS: {"a.py": {"passed": 3, "skipped": 1}},
            PARTS: {"cost": {"status": "done"}},
        }
    )
    assert fine["no test that needs a GPU fails"] == ["0 (of 4)", "met"]
    assert fine["each part of the check comes to its end"] == ["0 (of 1)", "met"]
    bad = verdicts(
        {
            TESTS: {"a.py": {"passed": 3}, "b.py": {"failed": 2}},
            PARTS: {"cost": {"status": "stopped"}, "tests": {"status": "done"}},
        }
    )
    assert bad["no test that needs a GPU fails"] == ["2 (b.py)", "missed"]
    assert bad["each part of the check comes to its end"] == [
        "1 (cost: stopped)",
        "missed",
    ]


LOG = """
tests/a.py::test_one PASSED                                        [ 10%]
tests/a.py::test_two[link TimerHook] FAILED                        [ 20%]
tests/a.py::test_three SKIPPED (needs a CUDA device)               [ 30%]
tests/b.py::test_four ERROR                                        [ 40%]
tests/b.py::test_hangs"""


def test_outcomes_are_known_of_tests_that_were_stopped() -> None:
    assert gpu_verdict.outcomes_of_tests(LOG) == {
        "tests/a.py": {"passed": 1, "failed": 1, "skipped": 1},
        "tests/b.py": {"failed": 1},
    }


def test_a_file_has_the_verdict_and_the_failures(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(results, "DIRECTORY", tmp_path)
    cost = file_name(COST)
    results.write(cost, [], {"found": {}, "failures": {"resnet": "OutOfMemoryError"}})
    gpu_verdict.save_tests(LOG)
    gpu_verdict.save({"cost": Outcome("done", 61), "tests": Outcome("stopped", 90)})
    printed = capsys.readouterr().out
    assert "gpu_cost: resnet failed: `OutOfMemoryError`." in printed
    assert "In all, 151 s." in printed
    assert "several GPUs" in printed
    parts, untried, verdict = results.load(file_name("gpu_verdict"))["tables"]
    assert parts.rows[0] == ["cost", "done", "61"]
    assert [row[0] for row in untried.rows] == ["several GPUs", "NCCL", "MPS", "XPU"]
    assert "missed" in {row[-1] for row in verdict.rows}

    gpu_verdict.forget(["cost"])
    assert results.figures(cost) is None
