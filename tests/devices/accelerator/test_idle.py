"""How long a device idled in a traced step: torch's profiler records planted times by
the interface that makers of accelerators have, so each nanosecond is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.devices.accelerator.found import traced_in
from tests.running import python

pytestmark = pytest.mark.slow

NO_ROWS: dict[str, float] = {}


@pytest.fixture(scope="module")
def found(extension: Path) -> dict[str, Any]:
    """What each scenario has found: step, its ms, of devices busy ms and ms of rows."""
    done = python("-m", "tests.devices.accelerator.idle", str(extension))
    scenarios: dict[str, Any] = traced_in(done)
    return scenarios


def test_a_device_that_waits_for_the_host(found: dict[str, Any]) -> None:
    step, step_ms, devices, _ = found["slow_host"]

    assert (step, step_ms) == (4, 33)
    busy_ms, rows = devices["planted:0"]
    assert busy_ms == 2 + 1 + 3 + 2
    assert rows == {
        "Sequential.0 forward": 5 - 2,
        "Sequential.1 forward": 10,
        "Sequential.2 backward": 6 - 2,
        "Sequential.0 backward": 4 - 3,
        "(outside modules) outside": 7,
    }
    assert busy_ms + sum(rows.values()) == step_ms


def test_work_of_the_step_before(found: dict[str, Any]) -> None:
    """The host is ahead: the device has no moment to idle in."""
    _, step_ms, devices, _ = found["slow_device"]

    assert devices == {"planted:0": [step_ms, NO_ROWS]}


def test_what_comes_after_the_launch_is_not_the_hosts(found: dict[str, Any]) -> None:
    [busy_ms, rows] = found["latency"][2]["planted:0"]

    assert busy_ms == 2 + 2
    assert rows == {
        "(launched, not yet begun) outside": 3 + 3,
        "Sequential.0 forward": 10 - 2 - 3,
        "Sequential.1 forward": 10 - 2 - 3,
    }


def test_a_host_that_has_waited_for_the_device(found: dict[str, Any]) -> None:
    """Meanwhile, the device was busy; then it waits for what the host goes on to."""
    assert found["waiting_host"][2] == {"planted:0": [4, {"Sequential.1 forward": 8}]}


def test_a_device_that_is_not_in_use(found: dict[str, Any]) -> None:
    begun, [*_, reason] = found["unused"]
    assert not begun
    assert reason == "no device was in use after 2 steps"


def test_a_step_without_work_for_a_device(found: dict[str, Any]) -> None:
    assert found["nothing"] == [4, 4, {}, ""]


def test_what_is_computed_is_what_it_was(found: dict[str, Any]) -> None:
    (untraced, *traced), hooks = found["computed"]

    assert traced == [untraced, untraced]
    assert not any(hooks)
