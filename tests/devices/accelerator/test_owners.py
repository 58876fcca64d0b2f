"""Who holds the memory of a device: the planted one's allocator reports as CUDA's does,
counts what it hands out, and runs backward in a thread of the engine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.attribution.test_memory_owners import A, B
from tests.cores import NATIVE_CORE
from tests.devices.accelerator.found import found_in
from tests.devices.accelerator.owners import OPTIMIZERS, ROWS, blocks_of
from tests.devices.accelerator.scenarios import COUNTS_MEMORY
from tests.running import python

pytestmark = [
    NATIVE_CORE,
    pytest.mark.slow,
    pytest.mark.skipif(not COUNTS_MEMORY, reason="this torch does not ask devices"),
]

#: What the allocator hands out for the input, and for what ReLU keeps.
INPUT, HIDDEN = ROWS * 64 * 4, ROWS * 32 * 4
#: Of a buffer of 64 bytes, the allocator's share is nobody's if it was there before.
BUFFER, ROUNDED = 64, 512
PARAMETERS = {"Net.a, outside": A, "Net.b, outside": B}
GRADIENTS = {"Net.a, backward": A, "Net.b, backward": B}
PEAK = blocks_of(10**6)
OUTSIDE = "(outside modules), outside"


@pytest.fixture(scope="module")
def found(extension: Path) -> dict[str, Any]:
    """What each scenario has found."""
    done = python("-m", "tests.devices.accelerator.owners", str(extension))
    scenarios: dict[str, Any] = found_in(done)
    return scenarios


def test_a_device_that_comes_into_use_later_is_not_touched_before(
    found: dict[str, Any],
) -> None:
    was_initialized, source, is_the_allocators, kinds = found["first_use"]

    assert not was_initialized
    assert source == "planted:0"
    assert is_the_allocators
    assert kinds["parameter"] == A + B
    assert kinds["buffer"] == ROUNDED
    assert kinds["other"] == INPUT


@pytest.mark.parametrize("before", ["nothing", "model", "step"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_models_and_optimizers(
    found: dict[str, Any], optimizer: str, before: str
) -> None:
    run = found["trained"][f"{optimizer}, {before}"]
    per_number = {"SGD": 0, "momentum": 1, "Adam": 2}[optimizer]
    name = "Adam" if optimizer == "Adam" else "SGD"
    state = {f"(optimizer) {name}, optimizer": per_number * (A + B)}
    buffer = ROUNDED if before == "nothing" else BUFFER

    assert run["held"] == {
        "parameter": PARAMETERS,
        "buffer": {"Net, outside": buffer},
        "gradient": GRADIENTS,
        **({"optimizer state": state} if per_number else {}),
        "other": {OUTSIDE: INPUT + ROUNDED - buffer},
        "temporary": {OUTSIDE: PEAK},
    }
    assert run["peak"] == run["allocator's"]


@pytest.mark.parametrize("functions", [False, True])
def test_activations(found: dict[str, Any], functions: bool) -> None:
    run = found["activations"][functions]
    kept, loss = "Net.relu, forward", OUTSIDE
    if functions:
        kept, loss = "relu(100x32), forward", "sum(100x16), forward"

    assert run["held"]["activation"] == {kept: HIDDEN, loss: ROUNDED}
    assert run["held"]["parameter"] == PARAMETERS
    assert run["peak"] == run["allocator's"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(found: dict[str, Any], reentrant: bool) -> None:
    run = found["checkpoints"][reentrant]
    block = 4000 * 64 * 4

    again = {"Checkpointed.inner.1, recompute": block}
    if reentrant:  # the other kind stops before it
        again["Checkpointed.inner.2, recompute"] = block
    assert run["held"]["activation"] == again
    # Both are of the engine's thread: the gradients of a layer's output, and input.
    assert run["held"]["temporary"] == {
        f"Checkpointed.inner.{layer}, backward": block for layer in (1, 2)
    }
    assert run["peak"] == run["allocator's"]


def test_threads_that_train_while_they_are_read(found: dict[str, Any]) -> None:
    has_read, parameters = found["crowd"]

    assert has_read
    assert parameters == [A + B] * 15


def test_random_blocks_are_told_as_by_brute_force(found: dict[str, Any]) -> None:
    assert found["random_blocks"] == 0


def test_torchs_profiler_is_told_what_it_was(found: dict[str, Any]) -> None:
    events, are_the_same = found["beside_torchs_profiler"]

    assert events > 10
    assert are_the_same


def test_blocks_in_blocks(found: dict[str, Any]) -> None:
    calls, are_ours, is_undone, before, kinds = found["nested"]
    elsewhere, inner, outer = kinds

    assert calls == 2
    assert are_ours == [True, True]
    assert is_undone
    assert before == 0
    assert elsewhere == {"temporary": 1024, "other": 2048 + 4096}
    assert inner == {"temporary": 4096, "other": 2048}
    assert outer == {"temporary": 2048 + 4096 + 512, "other": 1024}


def test_another_device_is_not_counted(found: dict[str, Any]) -> None:
    peak, before = found["other_device"]

    assert peak == before


def test_who_had_the_memory_when_it_ran_out(found: dict[str, Any]) -> None:
    requested, path, phase, held = found["out_of_memory"]

    assert requested == blocks_of(10**9)
    assert (path, phase) == (["Greedy"], "forward")
    assert held["Greedy.relu, activation"] == 2 * HIDDEN
    assert held["Greedy.a, parameter"] == held["Greedy.a, gradient"] == A


def test_an_allocator_that_does_not_report_is_said(found: dict[str, Any]) -> None:
    for at_peak, source, not_measured in found["silent"]:
        assert at_peak == []
        assert source == "planted:0"
        assert not_measured == [
            "not measured: who holds the memory of planted:0: its allocator has not "
            "reported each block"
        ]


def test_a_fork_goes_on(found: dict[str, Any]) -> None:
    status, is_the_allocators = found["fork"]

    assert status == 0
    assert is_the_allocators
