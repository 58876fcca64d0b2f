"""`make gpu-check` where there is no GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.running import python

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
RESULTS = BENCHMARKS / "results"
CHECK = str(BENCHMARKS / "gpu_check.py")

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="there is a CUDA device"
)


@pytest.mark.thorough
def test_without_a_device_nothing_is_run_or_written() -> None:
    before = set(RESULTS.iterdir())
    ended = python(CHECK)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "there is no GPU" in ended.stderr
    assert "Nothing was run or written" in ended.stderr
    assert set(RESULTS.iterdir()) == before
