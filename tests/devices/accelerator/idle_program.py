"""A program whose device waits for the host, on planted clocks, to be profiled as a
whole. ``python -m tests.devices.accelerator.idle_program EXTENSION PROFILE`` writes the
profile and prints the report at exit; `docs/samples` has one of these."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import torchprof_hooks
from tests.devices.accelerator.device import Work, load, pass_time
from tests.devices.accelerator.idle import plant_clocks
from tests.fake_clock import MS, FakeClock, install

#: Steps of the program, and layers of its model.
STEPS, LAYERS = 8, 4
#: Of each batch, milliseconds of the host.
BATCH_MS = 6


class OneClock(FakeClock):
    """The time of the planted device, which is that of the host, too: whoever waits
    for the device moves both."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self.device = device
        self.began_ns = time.perf_counter_ns()

    def _pass(self, passed_ns: int) -> int:
        self.now_ns = self.began_ns + int(self.device.state()["now_ns"])
        return self.now_ns


class Batches(Dataset[torch.Tensor]):
    """Batches take the host some time."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        pass_time(self.device, BATCH_MS)
        return torch.ones(2)


class Layer(nn.Module):
    """Its attention keeps the device busy, its MLP the host."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        flash = "flash_fwd_kernel", "flash_bwd_kernel"
        self.attention = Work(device, (2, 1), (4, 2), kernels=flash)
        gemm = "gemm_kernel", "gemm_kernel"
        self.mlp = Work(device, (0.5, 4), (1, 5), kernels=gemm)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.mlp(self.attention(x))
        return result


class Decoder(nn.Module):
    """Layers."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.layers = nn.ModuleList(Layer(device) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.weight
        for layer in self.layers:
            x = layer(x)
        return x


class Optimizer(torch.optim.SGD):
    """One that takes both some time."""

    def __init__(self, model: nn.Module, device: Any) -> None:
        super().__init__(model.parameters(), lr=0.1)
        self.device = device

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass_time(self.device, 1)
        self.device.add_work((3 * MS, "multi_tensor_apply_kernel"))
        pass_time(self.device, 1)
        super().step(closure)


def main(extension: str, path: str) -> None:
    device = load(Path(extension))
    clock = OneClock(device)
    clock()
    monkeypatch = pytest.MonkeyPatch()  # until the process ends
    install(clock, monkeypatch)
    monkeypatch.setattr("tests.fake_clock._clocks", [clock])
    monkeypatch.setattr("torchprof_hooks.program.handover.BEGAN_NS", clock())
    plant_clocks(device, clock, monkeypatch)
    device.set_latency(MS // 10)
    sys.argv = ["train.py"]
    torchprof_hooks.enable(save=path, device_idle=True)
    kept = device.allocate(1)  # from now on, the device is in use
    model = Decoder(device)
    optimizer = Optimizer(model, device)
    for batch in DataLoader(Batches(device)):
        model(batch).sum().backward()
        optimizer.step()
    del kept


if __name__ == "__main__":
    main(*sys.argv[1:])
