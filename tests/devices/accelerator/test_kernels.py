"""Kernels of modules in a traced step, of which each nanosecond is known: torch's
profiler records planted ones, with the threads that launched them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.devices.accelerator.found import traced_in
from tests.running import python

pytestmark = pytest.mark.slow

ADAM = {"(optimizer) Optimizer optimizer adam": [1, 5]}


@pytest.fixture(scope="module")
def found(extension: Path) -> dict[str, Any]:
    """What each scenario has found: step; of devices, ms in which they ran anything,
    and number and ms of kernels; reason; steps in tables, and traced ones."""
    done = python("-m", "tests.devices.accelerator.kernels", str(extension))
    scenarios: dict[str, Any] = traced_in(done)
    return scenarios


@pytest.mark.parametrize("scenario", ["modules", "in_engine_thread"])
def test_kernels_of_modules(found: dict[str, Any], scenario: str) -> None:
    step, devices, reason, steps, traced = found[scenario]

    assert (step, reason) == (4, "")
    assert (steps, traced) == (4, 2)  # of six
    busy_ms, kernels = devices["planted:0"]
    assert kernels == {
        "Net forward copy": [2, 2],
        "Net.attention forward flash": [1, 2],
        "Net.mlp forward gemm": [2, 6],
        "Net.attention backward flash_bwd": [1, 4],
        "Net.mlp backward gemm": [2, 12],
        **ADAM,
    }
    assert busy_ms == sum(ms for _, ms in kernels.values())


def test_kernels_that_run_after_the_step(found: dict[str, Any]) -> None:
    assert found["behind"][1] == {
        "planted:0": [
            805,
            {
                "Sequential.1 forward planted_kernel": [1, 300],
                "Sequential.1 backward planted_kernel": [1, 500],
                **ADAM,
            },
        ]
    }


def test_streams_that_are_busy_at_once(found: dict[str, Any]) -> None:
    busy_ms, kernels = found["streams"][1]["planted:0"]

    assert kernels == {
        "Sequential.1 forward planted_kernel": [1, 5],
        "Sequential.2.inner forward planted_kernel": [1, 9],
        "Sequential.2.inner backward planted_kernel": [1, 1],
        "Sequential.1 backward planted_kernel": [1, 2],
        **ADAM,
    }
    # The optimizer's kernel keeps the first stream busy for the first 4 ms of the next
    # step. Then come 5 and 1 ms, while the second one is busy from 1 to 10 ms.
    assert busy_ms == 9 + 2 + 5


def test_each_device_has_kernels_of_its_own(found: dict[str, Any]) -> None:
    assert found["devices"][1] == {
        "planted:0": [
            17,
            {
                "Sequential.1 forward planted_kernel": [1, 4],
                "Sequential.1 backward planted_kernel": [1, 6],
                # Whose backward runs where the program has chosen a device.
                "Sequential.2.inner backward planted_kernel": [1, 2],
                **ADAM,
            },
        ],
        "planted:1": [7, {"Sequential.2.inner forward planted_kernel": [1, 7]}],
    }


def test_kernels_of_no_module(found: dict[str, Any]) -> None:
    busy_ms, kernels = found["elsewhere"][1]["planted:0"]

    assert kernels == {
        "Sequential.0.1 forward planted_kernel": [1, 1],
        "Sequential.0.1 backward planted_kernel": [1, 1],
        "(outside modules) outside loss": [1, 2],
        "(launch not recorded) outside unseen": [1, 3],
        "(other threads) outside prefetch": [1, 4],
        **ADAM,
    }
    assert busy_ms == 1 + 1 + 2 + 3 + 4 + 5


def test_recomputation_is_a_phase(found: dict[str, Any]) -> None:
    name = "Checkpointed.inner.work"
    assert found["recomputed"][1]["planted:0"][1] == {
        f"{name} forward gemm": [1, 3],
        f"{name} recompute gemm": [1, 3],
        f"{name} backward gemm_bwd": [1, 4],
        **ADAM,
    }


def test_when_there_is_no_step(found: dict[str, Any]) -> None:
    assert found["too_short"][2] == "the traced step has not ended"
    assert found["other_profiler"] == [
        "another profiler of torch was running",
        "another profiler of torch began during the step",
    ]


def test_a_block_that_is_left_leaves_nothing(found: dict[str, Any]) -> None:
    assert found["left"] == [["the traced step has not ended", False]] * 3
