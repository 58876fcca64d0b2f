"""`make gpu-check`, as far as it runs where kernels take planted time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.running import python

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
#: Of this machine: kernels take long enough for the host to be ahead.
TIMES = {
    "PLANTED_REAL_CLOCK": "1",
    "PLANTED_DEFAULT_NS": "20000",
    "PLANTED_COPY_NS": "1000",
    "PLANTED_GEMM_NS": "1000000",
}


@pytest.mark.gpu
def test_its_parts_run_and_find_the_times_of_kernels() -> None:
    results = set((BENCHMARKS / "results").iterdir())
    check = str(BENCHMARKS / "gpu_check.py"), "--quick"
    ended = python(*check, environment={**os.environ, **TIMES}, fresh=True)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    for part in ("build", "accuracy", "cost"):
        assert f"# {part}: done after" in ended.stdout
    verdicts = [line for line in ended.stdout.splitlines() if line.startswith("|")]
    for aim in ("the kernels of a traced step are at most 1 % off", "stamps at most"):
        [verdict] = [line for line in verdicts if aim in line]
        assert verdict.split("|")[-2].strip() == "met", verdict
    assert set((BENCHMARKS / "results").iterdir()) == results
