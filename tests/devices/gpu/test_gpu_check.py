"""What `make gpu-check` makes of tests and of times, on any machine."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import bench_gpu
import gpu_check
import kernel_times
import pytest
import torch

from tests.helpers import hand_built, own
from tests.running import python

ROOT = Path(__file__).parents[3]

without_device = pytest.mark.skipif(
    torch.cuda.is_available(), reason="there is a CUDA device"
)


@without_device
@pytest.mark.parametrize("option", [[], ["--constraint"]])
def test_without_a_device_nothing_is_run_or_written(option: list[str]) -> None:
    results = ROOT / "benchmarks" / "results"
    before = set(results.glob("*-cuda*"))
    script = str(ROOT / "benchmarks" / "gpu_check.py")
    ended = python(script, *option)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "there is no GPU" in ended.stderr
    assert "Nothing was run or written" in ended.stderr
    assert set(results.glob("*-cuda*")) == before


@without_device
def test_the_benchmark_measures_nothing_without_a_device(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bench_gpu.main()
    assert "nothing was measured" in capsys.readouterr().out


def test_files_with_such_tests() -> None:
    files = gpu_check.test_files(ROOT / "tests")
    assert str(ROOT / "tests" / "devices" / "gpu" / "test_graphs.py") in files
    assert str(ROOT / "tests" / "seeds" / "function_hooks" / "test_memory.py") in files
    assert str(ROOT / "tests" / "test_bounds.py") not in files


def test_outcomes() -> None:
    report = """<testsuites><testsuite>
        <testcase classname="tests.a" name="1"/>
        <testcase classname="tests.a" name="2"><failure/></testcase>
        <testcase classname="tests.a" name="3"><skipped/></testcase>
        <testcase classname="tests.b" name="4"><error/></testcase>
    </testsuite></testsuites>"""
    assert gpu_check.outcomes(report) == {
        "tests.a": Counter(passed=1, failed=1, skipped=1),
        "tests.b": Counter(failed=1),
    }


def test_comparison_with_kernels() -> None:
    found = hand_built(
        {
            ("Net", "forward"): own(0, device_ns=50_000),
            ("Net > Net.a", "forward"): own(0, device_ns=404_000),
            ("Net > Net.a", "backward"): own(0, device_ns=594_000),
        },
        {"Net": "Net", "Net.a": "Linear"},
    )
    truth: kernel_times.Sums = {
        ("", "forward"): 900.0,
        ("Net", "forward"): 30.0,
        ("Net.a", "forward"): 400.0,
        ("Net.a", "backward"): 600.0,
    }
    compared = bench_gpu.comparisons(truth, found, steps=2)
    assert [(c.name, c.phase) for c in compared] == [
        ("Net.a", "backward"),
        ("Net.a", "forward"),
    ]
    assert [c.error for c in compared] == pytest.approx([-0.01, 0.01])
    table = bench_gpu.accuracy_table("Net", compared)
    assert table.rows[0] == ["Net.a", "backward", "300", "297", "-1.0%"]
    assert table.notes[0].startswith("2 modules and phases with at least 100 us")
    assert "2 are within 2 %" in table.notes[0]
