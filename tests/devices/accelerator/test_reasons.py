"""Why stamps and kernels differ, where that is known, as torch's profiler tells it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.devices.accelerator.found import traced_in
from tests.running import python

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.slow

Found = dict[tuple[str, str], tuple[dict[str, int], dict[str, Any]]]


@pytest.fixture(scope="module")
def found(extension: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """By module and phase: what is between its stamps, and its figures."""
    assert extension.exists()
    folder = str(tmp_path_factory.mktemp("results"))
    done = python(
        "-c",
        f"import os; os.environ['BENCH_RESULTS'] = {folder!r}\n"
        "from tests.devices.accelerator.reasons import main; main()",
    )
    rows = traced_in(done)
    return {(row["module"], row["phase"]): (between, row) for between, row in rows}


def us(found: Found, module: str, phase: str = "forward") -> dict[str, float]:
    """Of its time: those parts that are not 0."""
    between, _ = found[f"Sequential.{module}", phase]
    return {
        name.removesuffix("_ns"): value / 1000
        for name, value in between.items()
        if value and name != "kernels"
    }


def test_a_gap_for_the_host(found: Found) -> None:
    assert us(found, "0") == {"busy": 200, "host_gap": 301}
    _, row = found["Sequential.0", "forward"]
    assert (row["kernels_us"], row["stamps_us"]) == (200, 501)
    assert row["reason"] == "gap for the host 100%"


def test_gaps_between_kernels(found: Found) -> None:
    # Of those before it, 500 us from the third one's launch, 398 are left.
    assert us(found, "1") == {"busy": 300, "between": 102}
    between, row = found["Sequential.1", "forward"]
    assert between["kernels"] == 3
    assert (row["kernels_us"], row["stamps_us"]) == (300, 402)
    assert row["reason"] == "gaps between its kernels 100%"


@pytest.mark.parametrize(
    ("module", "phase", "kernels_us", "stamps_us"),
    [("2", "forward", 750, 400), ("3", "backward", 700, 0)],
)
def test_another_stream(
    found: Found, module: str, phase: str, kernels_us: int, stamps_us: int
) -> None:
    _, row = found[f"Sequential.{module}", phase]
    assert (row["kernels_us"], row["stamps_us"]) == (kernels_us, stamps_us)
    assert row["reason"] == "another stream 100%"


@pytest.mark.parametrize(
    ("module", "phase", "busy_us"),
    [
        ("3", "forward", 600),
        ("2", "backward", 160),
        ("1", "backward", 250),
        ("0", "backward", 150),
    ],
)
def test_modules_that_are_not_off(
    found: Found, module: str, phase: str, busy_us: int
) -> None:
    assert us(found, module, phase) == {"busy": busy_us}
    _, row = found[f"Sequential.{module}", phase]
    assert row["stamps_us"] == busy_us
    assert row["reason"] == ""


def test_nothing_is_left_to_explain(found: Found) -> None:
    for between, row in found.values():
        parts = ("busy_ns", "host_gap_ns", "before_ns", "between_ns")
        assert sum(between[part] for part in parts) == 1000 * row["stamps_us"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.thorough
@pytest.mark.usefixtures("extension")
def test_the_check_of_gpus_can_be_tried_without_one() -> None:
    results = ROOT / "benchmarks" / "results"
    before = set(results.iterdir())
    script = str(ROOT / "benchmarks" / "gpu_check.py")
    ended = python(script, "--planted", "build", "accuracy", "counts", "cost")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    parts = ("build", "accuracy", "counts", "cost")
    assert all(f"# {part}: done after" in ended.stdout for part in parts)
    for aim in ("records at most 2 events", "makes none", "at most once", "no Python"):
        [line] = [line for line in ended.stdout.splitlines() if aim in line]
        assert line.split("|")[-2].strip() == "met"
    assert set(results.iterdir()) == before
