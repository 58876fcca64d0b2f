"""Pieces of programs on the planted device, and what profiles say of them."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import nn

from torchprof_hooks import Profile

X = torch.ones(2, requires_grad=True)


def device_ms(found: Profile) -> dict[str, dict[str, float]]:
    """Of each row and phase, milliseconds of the device in it alone."""
    return {
        row.name: {
            phase: totals.device_self_ns / 1e6 for phase, totals in row.phases.items()
        }
        for row in found.rows()
        if row.kind != "outside"
    }


def driver() -> Any:
    """The library in place of that of CUDA's driver, which the process has loaded."""
    return ctypes.CDLL(None)


def capture(device: Any, does: bool) -> None:
    """From now on, streams are captured into a graph, or not any more."""
    device.capture(does)
    driver().planted_capture(does)


class OnStream(nn.Module):
    """Runs what is inside on a stream of its own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.stream = torch.Stream("planted")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = torch.accelerator.current_stream()
        torch.accelerator.set_stream(self.stream)
        try:
            result: torch.Tensor = self.inner(x)
            return result
        finally:
            torch.accelerator.set_stream(before)


class OnDevice(nn.Module):
    """Runs what is inside on another device."""

    def __init__(self, index: int, inner: nn.Module) -> None:
        super().__init__()
        self.index, self.inner = index, inner

    def forward(self, x: torch.Tensor) -> Any:
        before = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(self.index)
        try:
            return self.inner(x)
        finally:
            torch.accelerator.set_device_index(before)


class Allocates(nn.Module):
    """Keeps bytes of the device, and takes others for a moment."""

    def __init__(self, device: Any, kept: int, moment: int) -> None:
        super().__init__()
        self.device, self.kept, self.moment = device, kept, moment
        self.blocks: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.blocks.append(self.device.allocate(self.kept))
        self.device.allocate(self.moment)
        return x
