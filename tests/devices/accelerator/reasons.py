"""Why stamps and kernels differ, on the planted device, where each nanosecond is known:
prints the table of `benchmarks/gpu_accuracy.py`, and what is in it as JSON; null if
this torch cannot trace the device. ``python -m tests.devices.accelerator.reasons``."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["BENCH_DEVICE"] = "planted"
os.environ.setdefault("BENCH_RESULTS", tempfile.gettempdir())
sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import gpu_accuracy
import torch
from bench import planted_device
from bench_overhead import quiet_stderr
from gpu_results import Progress
from models import Workload
from torch import nn

US = 1000
STEPS = 2
#: Seconds of the host before and after planted time passes: Kineto's clock is not
#: exactly that of Python.
APART_S = 0.0005

#: Lets so many microseconds pass on the host; or has a kernel that takes so many, in
#: the current stream or in another one; or has what is launched begin later.
Action = tuple[str, int]


class Clock:
    """Takes times of the host to planted ones, which only pass in here."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._unix_ns: list[int] = []
        self._planted_ns: list[int] = []
        self.note()

    def __call__(self, unix_ns: int) -> int:
        return self._planted_ns[bisect_right(self._unix_ns, unix_ns) - 1]

    def note(self) -> None:
        """Planted time may have passed."""
        self._unix_ns.append(time.time_ns())
        self._planted_ns.append(self._device.state()["now_ns"])

    @contextmanager
    def passes(self) -> Iterator[None]:
        time.sleep(APART_S)
        yield
        self.note()
        time.sleep(APART_S)


class Planted(nn.Module):
    """What it does in forward, and in backward."""

    def __init__(
        self,
        device: Any,
        clock: Clock,
        *forward: Action,
        backward: Action = ("host", 1),
    ) -> None:
        super().__init__()
        self.device, self.clock = device, clock
        self.forward_actions, self.backward_actions = forward, (backward,)
        self.stream = torch.Stream("planted")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Acts.apply(x, self)
        return result

    def act(self, actions: tuple[Action, ...]) -> None:
        # Time passes between what is launched and calls that begin or end.
        for what, us in (("host", 1), *actions, ("host", 1)):
            with self.clock.passes():
                getattr(self, what)(us * US)

    def host(self, ns: int) -> None:
        self.device.pass_time(ns)

    def kernel(self, ns: int) -> None:
        self.device.add_work(ns)

    def elsewhere(self, ns: int) -> None:
        before = torch.accelerator.current_stream()
        torch.accelerator.set_stream(self.stream)
        self.device.add_work(ns)
        torch.accelerator.set_stream(before)

    def latency(self, ns: int) -> None:
        self.device.set_latency(ns)


class _Acts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, planted: Planted) -> torch.Tensor:
        ctx.planted = planted
        planted.act(planted.forward_actions)
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        ctx.planted.act(ctx.planted.backward_actions)
        return grad, None


def planted_workload(device: Any, clock: Clock) -> Workload:
    """Each module has its own reason to be off, or none."""

    def planted(*forward: Action, backward: Action) -> Planted:
        return Planted(device, clock, *forward, backward=backward)

    model = nn.Sequential(
        # The stream is idle until the host launches.
        planted(("host", 300), ("kernel", 200), backward=("kernel", 150)),
        # The second kernel begins late, though it was launched long ago.
        planted(
            ("kernel", 100),
            ("kernel", 100),
            ("latency", 500),
            ("kernel", 100),
            ("latency", 0),
            backward=("kernel", 250),
        ),
        planted(("kernel", 400), ("elsewhere", 350), backward=("kernel", 160)),
        planted(("kernel", 600), backward=("elsewhere", 700)),
    )
    x = torch.ones(2, requires_grad=True)

    def step() -> None:
        clock.note()  # who has waited for the device, has had time pass
        model(x).sum().backward()
        with clock.passes():  # until all is done: each step begins alike
            device.pass_time(10_000 * US)

    return Workload("planted", step, model, 5, lambda: model(x).sum())


def main() -> None:
    device = planted_device()
    if not device.has_traces:
        print("null")
        return
    kept = device.allocate(1)
    device.set_trace_offset(0)
    clock = Clock(device)
    workload = planted_workload(device, clock)
    with quiet_stderr():
        found = gpu_accuracy.compared(workload, STEPS, clock)
    del kept
    progress = Progress("gpu_accuracy")
    progress.add(
        [gpu_accuracy.accuracy_table(workload.name, found)],
        {workload.name: [each.figures() for each in found]},
    )
    print()
    print(json.dumps([[asdict(each.interval), each.figures()] for each in found]))


if __name__ == "__main__":
    main()
