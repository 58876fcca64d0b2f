"""An accelerator that is not CUDA, by torch's generic interface: its queue takes
planted time, so what is booked on its clock is right to the nanosecond, or wrong."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.devices.accelerator.scenarios import COUNTS_MEMORY
from tests.running import python
from torchprof_hooks.capture.core.compiler import find_compiler

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["native", "python"])
def found(request: pytest.FixtureRequest, extension: Path) -> dict[str, Any]:
    """What each scenario has found, with either core."""
    environment = {**os.environ, "TORCHPROF_HOOKS_CORE": request.param}
    driver = extension.with_name("libcuda.so.1")
    source = Path(__file__).with_name("planted_driver.cpp")
    named = f"-Wl,-soname,{driver.name}"
    options = ("-shared", "-fPIC", named, str(source), "-o", str(driver))
    subprocess.run([find_compiler(), *options], check=True)
    command = ("-m", "tests.devices.accelerator.scenarios", str(extension), str(driver))
    done = python(*command, environment=environment)
    assert done.returncode == 0, done.stderr
    scenarios: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return scenarios


def test_it_is_not_touched_before_the_program_does(found: dict[str, Any]) -> None:
    records, devices = found["before_first_use"]

    assert records == 0
    assert devices == []


def test_modules_have_what_they_queued(found: dict[str, Any]) -> None:
    times, _ = found["modules"]

    assert times["Sequential.0"] == {"forward": 9, "backward": 21, "recompute": 0}
    assert times["Sequential.1"] == {"forward": 15, "backward": 33, "recompute": 0}
    assert set(times["Sequential"].values()) == {0}


def test_nobody_waits_for_it_in_the_loop(found: dict[str, Any]) -> None:
    _, waits = found["modules"]

    assert waits == 0


def test_a_device_that_waits_for_the_host(found: dict[str, Any]) -> None:
    times, host_ms = found["idle_device"]

    # From the begin of a call to its end, as the device's clock goes on.
    assert times["Sequential.0"]["forward"] == 4
    assert times["Sequential.1"]["forward"] == 3
    assert host_ms == 4


def test_a_host_that_waits_for_the_device(found: dict[str, Any]) -> None:
    times, (queues_ms, waits_ms) = found["waiting_host"]

    assert (queues_ms, times["Sequential.0"]["forward"]) == (0, 20)
    assert (waits_ms, times["Sequential.1"]["forward"]) == (21, 1)


def test_a_call_on_another_stream_has_that_ones_time(found: dict[str, Any]) -> None:
    assert found["streams"]["forward"] == 2


def test_a_second_device(found: dict[str, Any]) -> None:
    assert found["second_device"]["Work"]["forward"] == 9


def test_functions(found: dict[str, Any]) -> None:
    assert found["functions"] == 0.01
    assert found["functions_with_callbacks"] == 0.01


def test_what_is_captured_has_no_time(found: dict[str, Any]) -> None:
    times = found["captured"]

    assert times["Sequential.0"]["forward"] == 2 * 3
    assert times["Sequential.1"]["forward"] == 2 * 5


def test_a_capture_elsewhere_goes_on(
    found: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    forward_ms, ended_captures = found["captured_elsewhere"]

    assert forward_ms == 600 * 3
    assert (ended_captures == 0) == (core_of(request) == "native")  # see the limits


def test_a_device_that_fails_is_left_to_the_program(found: dict[str, Any]) -> None:
    assert found["failing"] == {"forward": 3, "backward": 0, "recompute": 0}


def test_a_device_that_is_first_used_in_a_call(found: dict[str, Any]) -> None:
    times = found["first_use_in_a_call"]

    assert times["UsesItLate.inner"]["forward"] == 3
    # What it had queued before is not seen: its stamp comes behind that.
    assert times["UsesItLate"]["forward"] == 0


def core_of(request: pytest.FixtureRequest) -> str:
    core: str = request.node.callspec.params["found"]
    return core


def test_events_are_used_again(
    found: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    times, made, waits = found["many_calls"]

    assert times == {"forward": 1800, "backward": 1800, "recompute": 0}
    *first, next_profile = made
    assert first[-1] == first[2]
    # The native core uses those of other profiles, but for two by which a device is
    # asked whether it has a clock.
    assert next_profile - first[-1] == {"native": 2, "python": 12}[core_of(request)]
    assert waits == 0


def test_how_often_it_waits_for_the_host(found: dict[str, Any]) -> None:
    slow_host, fast_host = found["waits_for_the_host"]

    assert slow_host == 1
    assert fast_host == 0


def test_the_first_step_has_what_it_queued(found: dict[str, Any]) -> None:
    first, later, waits = found["first_step"]

    assert first == {"forward": 5 * 3, "backward": 5 * 7, "recompute": 0}
    assert later == {"forward": 600 * 3, "backward": 600 * 7, "recompute": 0}
    assert waits == 0


@pytest.mark.skipif(not COUNTS_MEMORY, reason="this torch does not ask devices")
@pytest.mark.parametrize("option", ["True", "planted", "planted:0"])
def test_memory_is_that_of_its_allocator(
    found: dict[str, Any], option: str, request: pytest.FixtureRequest
) -> None:
    used, source, not_measured = found["memory"][option]

    # In blocks of 512 bytes.
    assert used == {"Sequential": 0, "Sequential.0": 1536, "Sequential.1": 4608}
    assert source == "planted:0"
    if core_of(request) == "native":
        assert not_measured == []
    else:
        why = "that needs the native core"
        assert not_measured == [f"who holds the memory of planted:0: {why}"]


@pytest.mark.skipif(not COUNTS_MEMORY, reason="this torch does not ask devices")
def test_peaks_of_memory(found: dict[str, Any]) -> None:
    modules, peak, whose = found["peaks_of_memory"]

    # used, acquired, retained, peak
    assert modules["Sequential.0"] == [2 * 1536, 0, 2 * 1024, 1024]
    used, acquired, retained, rise = modules["Sequential.1"]
    assert (used, retained) == (2 * 1_000_960, 2 * 512)
    assert rise == 1_000_960
    assert 0 < acquired < 1_000_960  # the half a million before is there already
    assert whose == ["Sequential", "Sequential.1"]
    assert peak >= 1_000_960 + 1536 + 1024


@pytest.mark.skipif(not COUNTS_MEMORY, reason="this torch does not ask devices")
def test_a_device_that_is_not_there_is_refused(found: dict[str, Any]) -> None:
    [not_there, *not_this_kind] = found["other_devices"]

    assert not_there == (
        "memory must be one of this machine's, not 'planted:7': there is no planted:7: "
        "use a smaller number"
    )
    for said in not_this_kind:
        assert said.startswith(
            "memory must be 'cpu', 'cuda' or 'cuda:N' or 'planted' or 'planted:N', not "
        )


def test_memory_that_torch_does_not_ask_for_is_said(found: dict[str, Any]) -> None:
    said = found["uncounted_memory"]

    assert ("is not told what its allocator hands out" in said) != COUNTS_MEMORY


def test_files_say_what_the_process_computes_on(found: dict[str, Any]) -> None:
    assert found["origin"] == "planted:0"
