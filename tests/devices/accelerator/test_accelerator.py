"""An accelerator that is not CUDA, by torch's generic interfaces: it is found, its
times are right to the nanosecond, its memory to the byte, and reports say so."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from torch import nn

from tests.cores import NATIVE_CORE
from tests.devices.accelerator.device import Device, Work
from torchprof_hooks import Profile, profile
from torchprof_hooks.measure.origin import Origin
from torchprof_hooks.profiles.memory import MemorySummary

pytestmark = [NATIVE_CORE, pytest.mark.slow]

#: torch asks devices of all kinds what they have allocated.
COUNTS_MEMORY = hasattr(torch.accelerator, "memory_stats")
of_memory = pytest.mark.skipif(not COUNTS_MEMORY, reason="torch does not ask devices")


def leaf() -> torch.Tensor:
    """Its backward runs in the engine's thread for the device."""
    return torch.ones(2, device="planted", requires_grad=True)


def take(size: int, index: int = 0) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=f"planted:{index}")


def device_ms(found: Profile) -> dict[tuple[str, str], float]:
    """Milliseconds of the device by row and phase, as far as there are some."""
    return {
        (row.name, phase): totals.device_self_ns / 1e6
        for row in found.rows()
        for phase, totals in row.phases.items()
        if totals.device_self_ns
    }


def test_it_is_not_touched_before_the_program_does(device: Device) -> None:
    with profile() as prof:
        nn.Linear(2, 2)(torch.ones(2))

    assert not device.is_initialized()
    assert device.state()["records"] == 0
    assert prof.profile.devices == ()


def test_it_is_first_used_in_a_call(device: Device) -> None:
    class UsesItLate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Work(device, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            device.work(2)
            self.block = take(1)
            result: torch.Tensor = self.inner(x)
            return result

    with profile() as prof:
        UsesItLate()(torch.ones(2))

    # What it had queued before is not seen: its stamp comes behind that.
    assert device_ms(prof.profile) == {("UsesItLate.inner", "forward"): 3}


def test_modules_have_what_they_queued(device: Device) -> None:
    model, x = nn.Sequential(Work(device, 3, 7), Work(device, 5, 11)), leaf()
    with profile() as prof:
        for _ in range(3):
            model(x).sum().backward()
            device.pass_time(30)
        waits = device.state()["waits"]

    assert device_ms(prof.profile) == {
        ("Sequential.0", "forward"): 3 * 3,
        ("Sequential.1", "forward"): 3 * 5,
        ("Sequential.0", "backward"): 3 * 7,
        ("Sequential.1", "backward"): 3 * 11,
    }
    assert waits == 0
    assert prof.profile.devices == ("planted",)
    assert Origin().provenance(has_ended=False).device == "planted:0"
    assert "  device  " in prof.profile.report()


def test_functions(device: Device) -> None:
    work, x = Work(device, 4, 6), leaf()
    with profile(functions=True) as prof:
        work(x).sum().backward()

    [found] = [row for row in prof.profile.rows("function") if row.name == "_Queued"]
    assert found.device_self_ns == 10e6


def test_what_is_captured_has_no_time(device: Device) -> None:
    """Events are errors in there; before and after, there are times. What the device
    does meanwhile is of the call that had it before and after."""
    model, x = nn.Sequential(Work(device, 3), Work(device, 5)), leaf()
    with profile() as prof:
        for captures in (0, 1, 0):
            device.put(captures=captures)
            model(x)

    assert device_ms(prof.profile) == {
        ("Sequential.0", "forward"): 2 * 3,
        ("Sequential.1", "forward"): 2 * 5,
        ("(outside modules)", "outside"): 3 + 5,
    }


def test_a_device_that_fails_is_left_to_the_program(device: Device) -> None:
    model, x = nn.Sequential(Work(device, 3)), leaf()
    with profile() as prof:
        for fails in (0, 1):
            device.put(fails=fails)
            model(x).sum().backward()
        device.put(fails=0)

    assert device_ms(prof.profile) == {("Sequential.0", "forward"): 3}


def test_events_are_used_again(device: Device) -> None:
    model, x = Work(device, 0, 0), leaf()
    made = []
    with profile():
        for _ in range(8):
            for _ in range(300):
                model(x).sum().backward()
                device.pass_time(1)
            made.append(device.state()["events"])
        waits = device.state()["waits"]

    assert made[-1] <= made[3] + 1  # where stamps pause, one more may wait
    assert waits == 0


def blocks_of(size: int) -> int:
    """The bytes that the allocator hands out for so many."""
    return -(-size // 512) * 512


class Allocates(nn.Module):
    """Keeps bytes of the device, and takes others for a moment."""

    def __init__(self, kept: int, moment: int) -> None:
        super().__init__()
        self.kept, self.moment = kept, moment
        self.blocks: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.blocks.append(take(self.kept))
        take(self.moment)
        return x


def summary(found: Profile) -> MemorySummary:
    assert found.memory is not None
    return found.memory


@of_memory
def test_memory_is_that_of_its_allocator(device: Device) -> None:
    leaf()
    model = nn.Sequential(Allocates(1000, 50), Allocates(200, 10**6))
    for option in (True, "planted", "planted:0"):
        torch.accelerator.reset_peak_memory_stats(0)
        take(500_000)
        with profile(memory=option) as prof:
            for _ in range(2):
                model(torch.ones(2))
            take(10**7, index=1)  # nobody asked for that one
        found = {row.name: row for row in prof.profile.rows("module")}
        first, second = (
            found[f"Sequential.{n}"].phases["forward"].memory for n in range(2)
        )
        memory = summary(prof.profile)

        assert (first.used_bytes, first.retained_bytes) == (2 * 1536, 2 * 1024)
        large = blocks_of(10**6)
        assert (second.used_bytes, second.retained_bytes) == (
            2 * (512 + large),
            2 * 512,
        )
        assert memory.source == "planted:0"
        assert memory.peak_bytes == torch.accelerator.max_memory_allocated(0)
        assert memory.peak_path == ("Sequential", "Sequential.1")
        assert prof.profile.not_measured == ()


class Net(nn.Module):
    """Its ReLU keeps its result for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(64, 32, bias=False)
        self.relu = nn.ReLU()
        self.b = nn.Linear(32, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.b(self.relu(self.a(x)))
        return found


#: Bytes of its weights.
A, B = 4 * 64 * 32, 4 * 32 * 16


@of_memory
def test_who_holds_its_memory(device: Device) -> None:
    """Of a device that comes into use in the block; backward runs in its thread."""
    with profile(memory="planted") as prof:
        net, x = Net().to("planted"), torch.ones(100, 64).to("planted")
        net(x).sum().backward()
        kept = take(10**6)
    memory = summary(prof.profile)
    held = {(one.kind, one.owner): one.bytes for one in memory.at_peak}

    assert sum(held.values()) == memory.peak_bytes
    assert memory.peak_bytes == torch.accelerator.max_memory_allocated(0)
    assert held["parameter", "Net.a"] == held["gradient", "Net.a"] == A
    assert held["parameter", "Net.b"] == held["gradient", "Net.b"] == B
    del kept


@of_memory
def test_threads_that_train_while_they_are_read(device: Device) -> None:
    """Each is measured by profiles of its own."""
    profilers: list[Any] = []

    def train() -> None:
        net, x = Net().to("planted"), torch.ones(100, 64, device="planted")
        for _ in range(5):
            with profile(memory="planted") as prof:
                profilers.append(prof)
                for _ in range(10):
                    net(x).sum().backward()

    every = [threading.Thread(target=train) for _ in range(3)]
    for one in every:
        one.start()
    reads = 0
    while any(one.is_alive() for one in every):
        reads += sum(prof.profile.memory is not None for prof in profilers[-3:])
        time.sleep(0.002)  # else they hardly ever get the interpreter
    assert reads
    kinds = [summary(prof.profile).bytes_by_kind() for prof in profilers]
    assert [kind["parameter"] for kind in kinds] == [A + B] * 15


@of_memory
def test_an_allocator_that_does_not_report_is_said(device: Device) -> None:
    """From the begin, or from somewhere on."""
    for is_silent in (1, 0):
        device.put(is_silent=is_silent)
        with profile(memory="planted:0") as prof:
            kept = [take(1024)]
            device.put(is_silent=1)
            kept.append(take(1024))
        device.put(is_silent=0)

        assert summary(prof.profile).at_peak == ()
        assert prof.profile.not_measured == (
            "not measured: who holds the memory of planted:0: its allocator has not "
            "reported each block",
        )
        del kept


def test_a_device_that_is_not_there_is_refused(device: Device) -> None:
    leaf()
    if COUNTS_MEMORY:
        with pytest.raises(ValueError, match="there is no planted:7: use a smaller"):
            profile(memory="planted:7")
    for other in ("mps", "xpu:1"):
        with pytest.raises(ValueError, match="'cuda:N' or 'planted' or 'planted:N', n"):
            profile(memory=other)


@pytest.mark.skipif(COUNTS_MEMORY, reason="this torch asks devices")
def test_memory_that_torch_does_not_ask_for_is_said(device: Device) -> None:
    with profile(memory="planted") as prof:
        Work(device, 1)(leaf())
    said = summary(prof.profile).unavailable
    assert "its allocator does not report to torch" in said
