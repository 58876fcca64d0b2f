"""What stamps of the planted device do, and cost: scenarios (see scenarios.py)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tests.devices.accelerator.device import Work, pass_time
from tests.devices.accelerator.pieces import (
    Allocates,
    OnDevice,
    OnStream,
    X,
    device_ms,
    driver,
)
from torchprof_hooks import profile


class Parts(nn.Module):
    """A model whose parts run on two devices, and on two streams of one."""

    def __init__(self, device: Any, waits: bool) -> None:
        super().__init__()
        self.device = device
        self.first = Work(device, (3, 0), (30, 0), waits=waits)
        self.other = OnDevice(1, Work(device, (5, 0), (50, 0), waits=waits))
        self.side = OnStream(Work(device, (7, 0), (70, 0), waits=waits))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.other(self.first(x))
        self.device.add_work(2_000_000)
        torch.accelerator.current_stream().synchronize()
        return self.side(x)


def devices_and_streams(device: Any) -> Any:
    """Where each part waits for the one before it, and where they run together."""
    found = []
    kept = OnDevice(1, Allocates(device, 1, 1))
    kept(X)
    for waits in (True, False):
        for index in (0, 1):
            OnDevice(index, OnStream(Work(device, waits=True)))(X)
            OnDevice(index, Work(device, waits=True))(X)
        model = Parts(device, waits)
        with profile() as prof, torch.no_grad():
            for _ in range(3):
                model(X)
        times = device_ms(prof.profile)
        found.append({name: of["forward"] for name, of in times.items()})
    return found


def at_each_call(device: Any) -> Any:
    """What is done at the device for each call of a module, once all is steady."""
    seen = {}
    small, large = (
        nn.Sequential(*(Work(device, (0, 0), (0, 0)) for _ in range(n)))
        for n in (40, 80)
    )
    runs: tuple[tuple[str, bool, bool], ...] = (
        ("forward", False, False),
        ("backward", False, True),
        ("functions", True, False),
    )
    for name, functions, grads in runs:
        counts = []
        with profile(functions=functions), torch.set_grad_enabled(grads):
            for model in (small, large):
                for turns in (30, 60):
                    before = done_so_far(device)
                    with counted_calls() as called:
                        for _ in range(turns):
                            found = model(X)
                            if grads:
                                found.sum().backward()
                now = done_so_far(device)
                done = {key: now[key] - before[key] for key in now}
                counts.append({**done, "python": called[0]})
        seen[name] = {
            key: (counts[1][key] - counts[0][key]) / 40 / turns for key in counts[0]
        }
    return seen


def done_so_far(device: Any) -> dict[str, int]:
    return {**device.state(), "asked_driver": driver().planted_asked()}


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Counts calls of Python functions of ours."""
    count = [0]

    def called(frame: Any, event: str, _: object) -> None:
        ours = "torchprof_hooks" + os.sep
        count[0] += event == "call" and ours in frame.f_code.co_filename

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        yield count
    finally:
        sys.setprofile(before)


def stamps_that_cost(device: Any) -> Any:
    """Each takes 0.1 ms of a step of 100 ms: in most steps, there are none."""
    layers: list[nn.Module] = [Work(device, (4, 0), (6, 0)) for _ in range(10)]
    layers.append(Sometimes(Work(device, (9, 0), (0, 0))))
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1)
    found = {}
    runs: tuple[dict[str, Any], ...] = ({}, {"steps": 150})
    for options in runs:
        with profile(**options) as prof:
            for _ in range(300):
                device.set_record_cost(100_000)
                model(X).sum().backward()
                device.set_record_cost(0)
                optimizer.step()
                pass_time(device, 110)
        read = prof.profile
        times = device_ms(read)
        found[str(options)] = {
            "steps": [read.steps_with_device_times, read.steps_without_device_times],
            "times": {name: times[f"Sequential.{name}"] for name in ("0", "9")},
            "sometimes": times["Sequential.10.inner"]["forward"],
            "calls": {
                row.name: row.phases["forward"].calls
                for row in read.rows()
                if row.name in ("Sequential.0", "Sequential.10.inner")
            },
            "told": read.report(),
        }
    return found


class Sometimes(nn.Module):
    """Calls what is inside in each third call."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.calls = inner, 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return self.inner(x) if self.calls % 3 == 0 else x
