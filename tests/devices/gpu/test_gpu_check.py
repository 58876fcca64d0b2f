"""What `make gpu-check` makes of its parts and of times, on any machine."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import gpu_accuracy
import gpu_check
import gpu_counts
import pytest
import torch
from gpu_parts import Budget, Part
from gpu_reasons import Interval
from kernel_times import Owner

from tests.running import python
from torchprof_hooks import profile

ROOT = Path(__file__).parents[3]

without_device = pytest.mark.skipif(
    torch.cuda.is_available(), reason="there is a CUDA device"
)


@without_device
@pytest.mark.parametrize("option", [[], ["--constraint"], ["--ready"]])
def test_without_a_device_nothing_is_run_or_written(option: list[str]) -> None:
    results = ROOT / "benchmarks" / "results"
    before = set(results.iterdir())
    script = str(ROOT / "benchmarks" / "gpu_check.py")
    ended = python(script, *option)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "there is no GPU" in ended.stderr
    assert "Nothing was run or written" in ended.stderr
    assert set(results.iterdir()) == before


def test_files_with_such_tests() -> None:
    files = gpu_check.test_files(ROOT / "tests")
    assert str(ROOT / "tests" / "devices" / "gpu" / "test_graphs.py") in files
    assert str(ROOT / "tests" / "seeds" / "function_hooks" / "test_memory.py") in files
    assert str(ROOT / "tests" / "test_bounds.py") not in files


def test_all_parts_have_their_time() -> None:
    known = gpu_check.parts(Path(), planted=False)
    assert list(known) == [*gpu_check.PARTS, *gpu_check.MORE]
    assert gpu_check.BUDGET_S < 480
    # What is expected of each (see the README) is well below its limit.
    assert sum(known[name].limit_s for name in gpu_check.PARTS) < 1.5 * 480


def part(code: str, limit_s: float = 60, log: Path | None = None) -> Part:
    return Part("a part", ["-c", code], limit_s, log)


def test_parts_end_in_one_way_or_another() -> None:
    budget = Budget(60)
    assert budget.run(part(""), {}).status == "done"
    assert budget.run(part("raise ValueError"), {}).status == "failed"
    assert Budget(1).run(part(""), {}).status == "left out"


def test_a_part_that_takes_too_long_can_save_what_it_has(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = """
import os, time
print(os.environ["GIVEN"])
try:
    time.sleep(60)
except KeyboardInterrupt:
    print("saved")
"""
    started = time.monotonic()
    found = Budget(60).run(part(code, 1.5, log), {"GIVEN": "something"})
    assert found.status == "stopped"
    assert found.seconds < 30
    assert time.monotonic() - started < 30
    assert log.read_text().split() == ["something", "saved"]


def test_comparison_with_kernels() -> None:
    a = {"forward": Owner("Net.a", "forward"), "backward": Owner("Net.a", "backward")}
    compared = gpu_accuracy.comparisons(
        {
            Owner("", "forward"): Interval(1, 900_000),
            Owner("Net", "forward"): Interval(1, 30_000),
            a["forward"]: Interval(4, 400_000, between_ns=40_000),
            a["backward"]: Interval(2, 600_000),
        },
        {("Net.a", "forward"): 440.0, ("Net.a", "backward"): 594.0},
        {("Net.a", "backward"): 303.0},
        steps=2,
    )
    assert [c.owner for c in compared] == [a["backward"], a["forward"]]
    assert [c.error for c in compared] == pytest.approx([-0.01, 0.1])
    table = gpu_accuracy.accuracy_table("Net", compared)
    assert table.rows == [
        ["Net.a", "backward", 1, "300", "297", "-1.0%", "303", "+1.0%", ""],
        [
            *("Net.a", "forward", 2, "200", "220", "+10.0%", "0", "-100.0%"),
            "gaps between its kernels 100%",
        ],
    ]
    assert table.notes[0].startswith("2 modules and phases with at least 100 us")
    assert "1 are within 2 %" in table.notes[0]


def test_kernels_of_a_traced_step() -> None:
    row = SimpleNamespace(module="Net.a", phase="forward", busy_ns=2_000)
    use = SimpleNamespace(kernels=[row, row])
    step = SimpleNamespace(reason="", devices=[use])
    found = SimpleNamespace(device_step=step)
    assert gpu_accuracy.kernel_rows_us(found) == {("Net.a", "forward"): 4.0}
    step.reason = "another profiler of torch was running"
    assert gpu_accuracy.kernel_rows_us(found) is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cudaEventRecord", "event records"),
        ("cudaEventRecordWithFlags", "event records"),
        ("cudaStreamQuery", "queries"),
        ("cudaEventQuery", "queries"),
        ("cudaStreamIsCapturing", "questions about captures"),
        ("cudaDeviceSynchronize", "waits"),
        ("cudaLaunchKernel", None),
        ("aten::EventQuery", None),
    ],
)
def test_kinds_of_calls(name: str, kind: str | None) -> None:
    assert gpu_counts.kind_of(name) == kind


def test_of_all_steps_the_one_with_most_counts() -> None:
    calls = [(1, "waits"), (11, "queries"), (12, "queries"), (21, "queries")]
    assert gpu_counts.most_of_steps(calls, [10, 20]) == Counter(queries=2)


def test_what_longer_chains_do_more_is_per_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def count(workload: object) -> Counter[str]:
        is_ours = sys.getprofile() is None and bool(around)
        modules = workload.modules - 1  # type: ignore[attr-defined]
        return Counter({"records": (modules * 4 + 35) * is_ours + 7})

    around: list[int] = []

    def counted(count_it: object, workload: object, make: object) -> Counter[str]:
        around[:] = [1] if make is profile else []
        return count(workload)

    monkeypatch.setattr(gpu_counts, "counted", counted)
    assert gpu_counts.per_call(count) == {"records": 2.0}
