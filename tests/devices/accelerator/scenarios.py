"""What is done with the planted device, in a process of its own: prints, as JSON, what
each scenario has found::

    python -m tests.devices.accelerator.scenarios EXTENSION DRIVER OF_TORCH

DRIVER, OF_TORCH: libraries that are taken for CUDA's driver, and for torch's for CUDA;
with the second, the driver is asked whether a stream is captured.
"""

from __future__ import annotations

import ctypes
import json
import sys
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.devices.accelerator.device import Work, load
from tests.devices.accelerator.pieces import (
    Allocates,
    X,
    capture,
    device_ms,
)
from tests.devices.accelerator.stamps import (
    at_each_call,
    devices_and_streams,
    stamps_that_cost,
)
from tests.fake_clock import burn, fake_clock
from torchprof_hooks import MemorySummary, Profile, profile
from torchprof_hooks.kernel.core import CORE, NATIVE
from torchprof_hooks.measure.origin import Origin
from torchprof_hooks.profiles.errors import MemoryUnavailableError

#: torch asks devices of all kinds what they have allocated.
COUNTS_MEMORY = hasattr(torch.accelerator, "memory_stats")


def host_ms(found: Profile, name: str) -> float:
    [row] = [row for row in found.rows() if row.name == name]
    return row.phases["forward"].self_ns / 1e6


def before_first_use(device: Any) -> Any:
    with profile() as prof:
        nn.Linear(2, 2)(X)
    return [device.state()["records"], list(prof.profile.devices)]


def modules(device: Any) -> Any:
    model = nn.Sequential(Work(device, (3, 0), (7, 0)), Work(device, (5, 0), (11, 0)))
    before = device.state()["waits"]
    with profile() as prof:
        for _ in range(3):
            model(X).sum().backward()
        waits = device.state()["waits"] - before
    return [device_ms(prof.profile), waits]


def idle_device(device: Any) -> Any:
    """The host is slower than the device, which has nothing to do in between."""
    model = nn.Sequential(Work(device, (1, 4)), Work(device, (2, 3)))
    torch.accelerator.current_stream().synchronize()
    with profile() as prof:
        model(X)
    return [device_ms(prof.profile), host_ms(prof.profile, "Sequential.0")]


def waiting_host(device: Any) -> Any:
    """One module queues, another one waits for it."""
    torch.accelerator.current_stream().synchronize()
    model = nn.Sequential(Work(device, (20, 0)), Work(device, (1, 0), waits=True))
    with profile() as prof:
        model(X)
    found = prof.profile
    return [device_ms(found), [host_ms(found, f"Sequential.{n}") for n in (0, 1)]]


def summary(found: Profile) -> MemorySummary:
    assert found.memory is not None
    return found.memory


def functions(device: Any) -> Any:
    work = Work(device, (4, 0), (6, 0))
    with profile(functions=True) as prof:
        work(X).sum().backward()
    rows = {row.name: row for row in prof.profile.rows("function")}
    return rows["_Queued"].device_self_ns / 1e9 if "_Queued" in rows else None


def captured(device: Any) -> Any:
    """Events are errors in there; before and after, there are times."""
    model = nn.Sequential(Work(device, (3, 0)), Work(device, (5, 0)))
    with profile() as prof:
        model(X)
        capture(device, True)
        model(X)
        capture(device, False)
        model(X)
    return device_ms(prof.profile)


def captured_elsewhere(device: Any) -> Any:
    """Another thread, say, captures a graph: nothing that is asked may end that."""
    model = nn.Sequential(Work(device, (3, 0)))
    before = device.state()["ended_captures"]
    with profile() as prof:
        device.capture_elsewhere(True)  # whether it tells times has been asked
        for _ in range(600):  # more than are kept waiting
            model(X).sum().backward()
    found = device_ms(prof.profile)["Sequential.0"]
    device.capture_elsewhere(False)
    return [found["forward"], device.state()["ended_captures"] - before]


def failing(device: Any) -> Any:
    """The program does not see it: it gets errors of its own from such a device."""
    model = nn.Sequential(Work(device, (3, 0)))
    with profile() as prof:
        model(X)
        device.fail(True)
        model(X).sum().backward()
        device.fail(False)
    return device_ms(prof.profile)["Sequential.0"]


class UsesItLate(nn.Module):
    """Begins to use the device in the middle of its call."""

    def __init__(self, inner: nn.Module, device: Any) -> None:
        super().__init__()
        self.inner, self.device = inner, device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.device.add_work(2_000_000)
        self.block = self.device.allocate(1)
        result: torch.Tensor = self.inner(x)
        return result


def first_use_in_a_call(device: Any) -> Any:
    with profile() as prof:
        UsesItLate(Work(device, (3, 0)), device)(X)
    return device_ms(prof.profile)


def many_calls(device: Any) -> Any:
    """More than are kept waiting: events are used again, and memory does not grow."""
    model = nn.Sequential(Work(device, (0, 1), (0, 1)))
    torch.accelerator.current_stream().synchronize()
    made = []
    before = device.state()["waits"]
    with profile() as prof:
        for _ in range(6):
            for _ in range(300):
                model(X).sum().backward()
            made.append(device.state()["events"])
        waits = device.state()["waits"] - before
    found = device_ms(prof.profile)["Sequential.0"]
    with profile():
        model(X).sum().backward()
    made.append(device.state()["events"])
    return [found, made, waits]


def waits_for_the_host(device: Any) -> Any:
    """The share of stamps at which it does: where the host is slower, and where it is
    ahead."""
    seen: list[float] = []
    for queued, took in ((0, 1), (1, 0)):
        model = nn.Sequential(Work(device, (queued, took), (queued, took)))
        torch.accelerator.current_stream().synchronize()
        with profile() as prof:
            for _ in range(100):
                model(X).sum().backward()
        device_ms(prof.profile)
        seen.append(prof.profile.device_waits / prof.profile.device_asked)
    return seen


def first_step(device: Any) -> Any:
    """The host is ahead of the device, which has done nothing of the first step when
    that ends; later, some is booked in the loop, and the rest at its end."""
    model = Work(device, (3, 0), (7, 0))
    x = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1)
    torch.accelerator.current_stream().synchronize()
    before = device.state()["waits"]
    with profile() as prof:
        for batches in (5, *[1] * 600):
            for _ in range(batches):
                model(x).sum().backward()
            optimizer.step()
            if batches == 1:
                burn(10)
        waits = device.state()["waits"] - before
    found = prof.profile
    parts = (found.start_up, found.loop)
    return [*(device_ms(part)["Work"] for part in parts), waits]


def memory(device: Any) -> Any:
    model = nn.Sequential(Allocates(device, 1000, 50), Allocates(device, 200, 4000))
    found = {}
    for option in (True, "planted", "planted:0") if COUNTS_MEMORY else ():
        with profile(memory=option) as prof:
            model(X)
        used = {
            row.name: row.phases["forward"].memory.used_bytes
            for row in prof.profile.rows()
            if row.kind == "module"
        }
        found[str(option)] = [
            used,
            summary(prof.profile).source,
            prof.profile.not_measured,
        ]
    return found


def peaks_of_memory(device: Any) -> Any:
    """The second layer sets the high-water mark of the run, the first one does not;
    and what it reaches within calls is not read, unless it is the highest so far."""
    if not COUNTS_MEMORY:
        return []
    before = device.allocate(500_000)
    del before
    model = nn.Sequential(Allocates(device, 1000, 50), Allocates(device, 200, 10**6))
    with profile(memory=True) as prof:
        for _ in range(2):
            model(X).sum().backward()
    found = {
        row.name: astuple(row.phases["forward"].memory_cumulative)
        for row in prof.profile.rows()
        if row.kind == "module"
    }
    whole = summary(prof.profile)
    return [found, whole.peak_bytes, whole.peak_path]


def other_devices(device: Any) -> Any:
    said = []
    for option in ("planted:7", "mps", "xpu:1"):
        try:
            profile(memory=option)
        except (ValueError, MemoryUnavailableError) as error:
            said.append(str(error))
    return said


def origin(device: Any) -> Any:
    """What files say that the process computes on."""
    return Origin().provenance(has_ended=False).device


def uncounted_memory(device: Any) -> Any:
    """Where torch does not ask devices for it."""
    with profile(memory="planted") as prof:
        Work(device)(X)
    return summary(prof.profile).unavailable


SCENARIOS = (
    before_first_use,  # first
    first_use_in_a_call,  # second
    modules,
    idle_device,
    waiting_host,
    functions,
    captured,
    captured_elsewhere,
    failing,
    many_calls,
    waits_for_the_host,
    first_step,
    devices_and_streams,
    at_each_call,
    stamps_that_cost,
    memory,
    peaks_of_memory,
    other_devices,
    origin,
    uncounted_memory,
)


def main(path: str, driver: str, of_torch: str = "") -> None:
    ctypes.CDLL(driver, ctypes.RTLD_GLOBAL)
    device = load(Path(path))
    if of_torch and CORE.module is not None:
        ctypes.CDLL(of_torch)
        NATIVE.set_driver_kind("planted")
    found = {}
    monkeypatch = pytest.MonkeyPatch()
    with fake_clock(monkeypatch):
        for scenario in SCENARIOS:
            if scenario not in (before_first_use, first_use_in_a_call):
                kept = device.allocate(1)
            found[scenario.__name__] = scenario(device)
    del kept
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
