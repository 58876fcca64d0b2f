"""How long a device idled in a traced step: torch's profiler records planted times by
the interface that makers of accelerators have, so each nanosecond is known."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.devices.accelerator.found import traced_in
from tests.fake_clock import MS
from tests.running import python
from torchprof_hooks import Profile
from torchprof_hooks.profiles.trace.kernels import Kernel

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


@pytest.mark.usefixtures("found")  # which skips where it cannot be tried
def test_a_whole_program(extension: Path, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    done = python(
        "-m", "tests.devices.accelerator.idle_program", str(extension), str(path)
    )
    assert done.returncode == 0, done.stderr

    idle = Profile.load(path).device_step
    assert idle is not None
    assert (idle.step, idle.step_ns) == (4, 56 * MS)
    [use] = idle.devices
    # Of each layer 2 and 0.5 ms forward, 4 and 1 backward; 3 of the optimizer.
    assert use.busy_ns == (4 * 7.5 + 3) * MS
    times: Counter[tuple[str, str]] = Counter()
    for row in use.rows:
        times[row.module.rpartition(".")[2], row.phase] += row.idle_ns
    assert times == {
        # Each launch takes 0.1 ms until the device begins.
        ("mlp", "forward"): round(4 * (5 - 2.5 - 0.1) * MS),
        # The first one begins with an idle device, others with 2 ms left.
        ("mlp", "backward"): round((5 - 1 - 0.1) * MS + 3 * (5 - 1 - 2 - 0.1) * MS),
        # 2 ms of attention's backward are left, 2 pass in the optimizer.
        ("(data loading)", "data"): round((6 - 3 - 0.1) * MS),
        ("(launched, not yet begun)", "outside"): round(9 * 0.1 * MS),
    }
    kernels = {kernel for row in use.kernels for kernel in row.kernels}
    assert kernels == {
        Kernel("flash_fwd_kernel", 1, 2 * MS),
        Kernel("flash_bwd_kernel", 1, 4 * MS),
        Kernel("gemm_kernel", 1, MS // 2),
        Kernel("gemm_kernel", 1, 1 * MS),
        Kernel("multi_tensor_apply_kernel", 1, 3 * MS),
    }
    assert len(use.kernels) == 4 * 4 + 1
    line = "planted:0: busy 58.9 % of step 4 (56.00ms), idle 23.00ms\n"
    assert line in done.stderr
