"""Steps that are traced on the planted device, in a process of their own: prints, as
JSON, how long the device idled; null if this torch cannot trace it.
``python -m tests.devices.accelerator.idle EXTENSION``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.devices.accelerator.device import Work, load, pass_time
from tests.fake_clock import MS, FakeClock, fake_clock
from torchprof_hooks.instruments import interrupting
from torchprof_hooks.instruments.kernels.device_tracer import DeviceTracer
from torchprof_hooks.profiles.trace.device_step import DeviceStep

X = torch.ones(2, requires_grad=True)
OPTIMIZER = torch.optim.SGD([X], lr=0.0)


class OnHost(nn.Module):
    """The host works."""

    def __init__(self, device: Any, milliseconds: float) -> None:
        super().__init__()
        self.device, self.milliseconds = device, milliseconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass_time(self.device, self.milliseconds)
        return x


def in_ms(found: DeviceStep) -> Any:
    """Of the step, and of each device: busy, and the rows."""
    return [
        found.step,
        found.step_ns / MS,
        {
            use.device: [
                use.busy_ns / MS,
                {f"{row.module} {row.phase}": row.idle_ns / MS for row in use.rows},
            ]
            for use in found.devices
        },
        found.reason,
    ]


def traced(step: Any) -> Any:
    """Two steps, the second of which counts."""
    idle = DeviceTracer(interrupting)
    assert idle.begin(2)
    step()
    idle.end(3)
    assert idle.begin(3)
    step()
    idle.end(4)
    assert not idle.is_running
    return in_ms(idle.found())


def slow_host(device: Any) -> Any:
    """The device is quicker than the host, in forward and backward."""
    model = nn.Sequential(
        Work(device, (2, 5), (3, 4)), OnHost(device, 10), Work(device, (1, 0), (2, 6))
    )

    def step() -> None:
        loss = model(X).sum()
        pass_time(device, 1)
        loss.backward()
        pass_time(device, 7)
        OPTIMIZER.step()

    return traced(step)


def slow_device(device: Any) -> Any:
    """The host is ahead: what the first step has queued runs in the second one."""
    model = nn.Sequential(Work(device, (20, 5)), Work(device, (30, 6)))
    return traced(lambda: model(X))


def latency(device: Any) -> Any:
    """What is launched begins 3 ms later."""
    model = nn.Sequential(Work(device, (2, 10)), Work(device, (2, 10)))
    device.set_latency(3 * MS)
    try:
        return traced(lambda: model(X))
    finally:
        device.set_latency(0)


def waiting_host(device: Any) -> Any:
    """The host waits for the device at the end of a module, and goes on elsewhere."""
    model = nn.Sequential(Work(device, (4, 0), waits=True), OnHost(device, 8))
    return traced(lambda: model(X))


def unused(device: Any) -> Any:
    tracer = DeviceTracer(interrupting)
    return [tracer.begin(2), in_ms(tracer.found())]


def nothing(device: Any) -> Any:
    return traced(lambda: OnHost(device, 4)(X))


def computed(device: Any) -> Any:
    """Results and gradients of a step that is traced, and of one that is not."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), Work(device, (1, 2)))
    found: list[Any] = []

    def step() -> None:
        torch.manual_seed(1)
        model.zero_grad()
        out = model(X)
        out.square().sum().backward()
        gradients = [p.grad.tolist() for p in model.parameters() if p.grad is not None]
        found.append([out.tolist(), gradients, torch.get_rng_state().sum().item()])

    step()
    traced(step)
    hooks = [len(m._forward_hooks) for m in model.modules()]
    return [found, hooks]


SCENARIOS = (
    unused,  # first
    nothing,
    slow_host,
    slow_device,
    latency,
    waiting_host,
    computed,
)


def plant_clocks(
    device: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One planted time for the host, the device and the traces of it."""
    unix_ns = time.time_ns() - clock.now_ns
    monkeypatch.setattr(time, "perf_counter_ns", clock)
    monkeypatch.setattr(time, "time_ns", lambda: clock.now_ns + unix_ns)
    device.set_trace_offset(unix_ns + clock.now_ns - device.state()["now_ns"])


def main(path: str) -> None:
    device = load(Path(path))
    if not device.has_traces:
        print("null")
        return
    found = {}
    with pytest.MonkeyPatch.context() as monkeypatch, fake_clock(monkeypatch) as clock:
        plant_clocks(device, clock, monkeypatch)
        for scenario in SCENARIOS:
            if scenario is not unused:
                kept = device.allocate(1)
                torch.accelerator.current_stream().synchronize()
                plant_clocks(device, clock, monkeypatch)
            found[scenario.__name__] = scenario(device)
    del kept
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
