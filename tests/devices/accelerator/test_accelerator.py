"""An accelerator that is not CUDA, by torch's generic interface: its queue takes
planted time, so what is booked on its clock is right to the nanosecond, or wrong."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.devices.accelerator.found import found_in
from tests.devices.accelerator.scenarios import COUNTS_MEMORY
from tests.running import python
from torchprof_hooks.kernel.native.compiler import find_compiler

pytestmark = pytest.mark.slow
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))


@pytest.fixture(scope="module", params=["native", "driver"])
def found(request: pytest.FixtureRequest, extension: Path) -> dict[str, Any]:
    """What each scenario has found; "driver": where the core asks the driver whether a
    stream is captured, as it does with CUDA."""
    environment = {**os.environ, "TORCHPROF_HOOKS_CORE": "native"}
    driver = planted_library(extension.parent, "libcuda.so.1")
    planted = [str(extension), str(driver)]
    if request.param == "driver":
        if torch.version.cuda:
            pytest.skip(
                "torch's own library for CUDA is there, and knows no such device"
            )
        library = planted_library(extension.parent, "libc10_cuda.so", "-DOF_TORCH")
        planted.append(str(library))
    command = ("-m", "tests.devices.accelerator.scenarios", *planted)
    done = python(*command, environment=environment)
    scenarios: dict[str, Any] = found_in(done)
    return scenarios


def planted_library(folder: Path, name: str, *options: str) -> Path:
    """A library that is taken for one of CUDA's."""
    library = folder / name
    source = Path(__file__).with_name("planted_driver.cpp")
    named = ("-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(library))
    command = [find_compiler(), *named, *options, str(source)]
    subprocess.run(command, check=True)
    return library


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


def test_functions(found: dict[str, Any]) -> None:
    assert found["functions"] == 0.01


def test_what_is_captured_has_no_time(found: dict[str, Any]) -> None:
    times = found["captured"]

    assert times["Sequential.0"]["forward"] == 2 * 3
    assert times["Sequential.1"]["forward"] == 2 * 5


def test_a_capture_elsewhere_goes_on(found: dict[str, Any]) -> None:
    assert found["captured_elsewhere"] == [600 * 3, 0]


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


def test_events_are_used_again(found: dict[str, Any]) -> None:
    times, made, waits = found["many_calls"]

    assert times == {"forward": 1800, "backward": 1800, "recompute": 0}
    *first, next_profile = made
    assert first[-1] <= first[2] + 1  # where stamps pause, one more may wait
    # Those of other profiles, but for two by which a device is asked whether it has a
    # clock.
    assert next_profile - first[-1] == 2
    assert waits == 0


def test_what_is_done_at_each_call(
    found: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """A module of the model calls two functions, and has one node of its own in
    backward."""
    core = core_of(request)
    each = found["at_each_call"]

    stamps = {"forward": 2, "backward": 2 + 1, "functions": 2 + 2 * 2}
    assert {name: done["records"] for name, done in each.items()} == stamps
    for name, done in each.items():
        assert done["events"] == done["waits"] == 0
        # Before 2.13, only Python could ask torch, and CUDA's driver is asked instead.
        by_python = core != "driver" and TORCH < (2, 13)
        assert done["python"] == (2 * stamps[name] if by_python else 0)
        assert done["queries"] <= stamps[name] / 2 / 17
        by_driver, by_torch = done["asked_driver"], done["asked_whether_captured"]
        asked = (by_driver, by_torch) if core == "driver" else (by_torch, by_driver)
        assert asked == (stamps[name], 0)


def test_in_most_steps_there_are_no_stamps(found: dict[str, Any]) -> None:
    """Times are estimated from the others, by calls. A stamp is part of them."""
    for options, of_run in found["stamps_that_cost"].items():
        steps = 300 if options == "{}" else 150
        stamped = sum(step < 8 or step % 8 == 0 for step in range(steps))
        every = [{"forward": steps * 4.1, "backward": steps * 6.1, "recompute": 0}] * 2

        assert [*of_run["times"].values()] == every
        assert of_run["sometimes"] == pytest.approx(steps / 3 * 9.1, rel=0.01)
        calls = {"Sequential.0": steps, "Sequential.10.inner": steps // 3}
        assert of_run["calls"] == calls
        assert of_run["steps"] == [stamped, steps - stamped]
        said = f"evice times are those of {stamped} of {steps} steps, scaled by calls"
        assert said in " ".join(of_run["told"].split())


def test_parts_on_other_devices_and_streams(found: dict[str, Any]) -> None:
    expected = {
        "Parts": 3 * 2,
        "Parts.first": 3 * 3,
        "Parts.other": 0,
        "Parts.other.inner": 3 * 5,
        "Parts.side": 0,
        "Parts.side.inner": 3 * 7,
    }
    in_turns, side_by_side = found["devices_and_streams"]

    assert in_turns == side_by_side == expected


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
def test_memory_is_that_of_its_allocator(found: dict[str, Any], option: str) -> None:
    used, source, not_measured = found["memory"][option]

    # In blocks of 512 bytes.
    assert used == {"Sequential": 0, "Sequential.0": 1536, "Sequential.1": 4608}
    assert source == "planted:0"
    assert not_measured == []


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
