"""Kernels of modules in steps that are traced on the planted device, in a process of
their own: prints them as JSON; null if this torch cannot trace the device.
``python -m tests.devices.accelerator.kernels EXTENSION``."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.devices.accelerator.device import Work, load, pass_time
from tests.devices.accelerator.idle import OnHost, plant_clocks
from tests.devices.accelerator.idle_program import OneClock
from tests.devices.accelerator.pieces import OnStream
from tests.fake_clock import MS, install
from torchprof_hooks import profile
from torchprof_hooks.kernel.torch_names.profiler import is_profiler_active
from torchprof_hooks.profiles.trace.device_step import DeviceStep

X = torch.ones(2, requires_grad=True)


def in_ms(found: DeviceStep | None) -> Any:
    """Of the step, its number; of each device, how long it ran anything, and of each
    place and kernel: how many, and how long these ran. And the reason."""
    assert found is not None
    return [
        found.step,
        {
            use.device: [
                use.kernels_ns / MS,
                {
                    f"{row.module} {row.phase} {kernel.name}": [
                        kernel.calls,
                        kernel.busy_ns / MS,
                    ]
                    for row in use.kernels
                    for kernel in row.kernels
                },
            ]
            for use in found.devices
        },
        found.reason,
    ]


class Net(nn.Module):
    """Two layers that queue kernels, and some by themselves."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self.device = device
        self.weight = nn.Parameter(torch.ones(2))
        self.attention = Work(device, (2, 1), (4, 2), kernels=("flash", "flash_bwd"))
        self.mlp = Work(device, (3, 1), (6, 2), kernels=("gemm", "gemm"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.copy()
        x = self.mlp(self.mlp(self.attention(x * self.weight)))
        self.copy()
        return x

    def copy(self) -> None:
        pass_time(self.device, 1)
        self.device.add_work((1 * MS, "copy"))
        pass_time(self.device, 1)


class Optimizer(torch.optim.SGD):
    """One that queues a kernel."""

    def __init__(self, model: nn.Module, device: Any) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.device = device

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass_time(self.device, 1)
        self.device.add_work((5 * MS, "adam"))
        pass_time(self.device, 1)
        super().step(closure)


def trained(
    device: Any,
    model: nn.Module,
    after: Callable[[int], object] = lambda step: None,
    steps: int = 6,
    x: torch.Tensor = X,
) -> Any:
    """What is known of the devices after so many steps.

    after: called at the end of each, with its number.
    """
    optimizer = Optimizer(model, device)
    with profile(kernels=True) as prof:
        for step in range(1, steps + 1):
            model(x).sum().backward()
            after(step)
            OnHost(device, 1)(X)
            optimizer.step()
    found = prof.profile
    return [*in_ms(found.device_step), found.steps, found.measured.traced]


def modules(device: Any) -> Any:
    return trained(device, Net(device))


def behind(device: Any) -> Any:
    """The device does not run the step's work before the step is over."""
    model = nn.Sequential(nn.Linear(2, 2), Work(device, (300, 1), (500, 1)))
    return trained(device, model)


def streams(device: Any) -> Any:
    """Two streams have work at once."""
    other = OnStream(Work(device, (9, 1), (1, 20)))
    model = nn.Sequential(nn.Linear(2, 2), Work(device, (5, 1), (2, 20)), other)
    return trained(device, model)


class OnOther(nn.Module):
    """Runs what is inside on the second device."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.accelerator.set_device_index(1)
        try:
            result: torch.Tensor = self.inner(x)
            return result
        finally:
            torch.accelerator.set_device_index(0)


def devices(device: Any) -> Any:
    other = OnOther(Work(device, (7, 1), (2, 1)))
    own = Work(device, (4, 1), (6, 1))
    return trained(device, nn.Sequential(nn.Linear(2, 2), own, other))


def elsewhere(device: Any) -> Any:
    """Outside of modules; by calls that were not recorded; by another thread."""
    model = nn.Sequential(nn.Linear(2, 2), Work(device, (1, 1), (1, 1)))

    class Helped(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            thread = threading.Thread(
                target=lambda: device.add_work((4 * MS, "prefetch"))
            )
            thread.start()
            thread.join()
            return x

    def after(step: int) -> None:
        pass_time(device, 1)
        device.add_work((2 * MS, "loss"))
        pass_time(device, 1)
        device.add_work((3 * MS, "unseen", False))

    return trained(device, nn.Sequential(model, Helped()), after)


class Checkpointed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(
            self.inner, x * self.weight, use_reentrant=False
        )
        return result


class Saves(nn.Module):
    """Needs its input in backward, so that it is recomputed."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.work(x).square()
        return result


def recomputed(device: Any) -> Any:
    work = Work(device, (3, 1), (4, 1), kernels=("gemm", "gemm_bwd"))
    return trained(device, Checkpointed(Saves(work)))


def in_engine_thread(device: Any) -> Any:
    """Nodes of the device run in a thread of the engine's."""
    model = Net(device).to("planted")
    return trained(device, model, x=torch.ones(2, device="planted"))


def too_short(device: Any) -> Any:
    return trained(device, Net(device), steps=2)


def left(device: Any) -> Any:
    """The block ends in the middle of a traced step, by an exception of the program's;
    it can be entered again."""
    model, found = Net(device), []
    optimizer = Optimizer(model, device)
    prof = profile(kernels=True)
    for steps in (2, 3, 0):
        error = ValueError("the program's")
        with suppress(ValueError), prof:
            for _ in range(steps):
                model(X).sum().backward()
                optimizer.step()
            raise error
        found.append([in_ms(prof.profile.device_step)[-1], is_profiler_active()])
    return found


def other_profiler(device: Any) -> Any:
    model, theirs = Net(device), torch.profiler.profile()
    with theirs:
        before = trained(device, model)

    def after(step: int) -> None:
        if step == 3:
            theirs.start()

    found = [before[2], trained(device, model, after)[2]]
    theirs.stop()
    return found


SCENARIOS = (
    modules,
    behind,
    streams,
    devices,
    elsewhere,
    recomputed,
    in_engine_thread,
    too_short,
    left,
    other_profiler,
)


def main(path: str) -> None:
    device = load(Path(path))
    if not device.has_traces:
        print("null")
        return
    kept = device.allocate(1)
    found = {}
    clock = OneClock(device)
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(clock, monkeypatch)
        monkeypatch.setattr("tests.fake_clock._clocks", [clock])
        clock()
        plant_clocks(device, clock, monkeypatch)
        for scenario in SCENARIOS:
            torch.accelerator.current_stream().synchronize()
            found[scenario.__name__] = scenario(device)
    del kept
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
