"""Modules whose kernels take planted time, and what a profile says of them."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tests.devices.cuda import planted
from torchprof_hooks import Profile


class _Planted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward_ns: int, backward_ns: int) -> Any:
        ctx.backward_ns = backward_ns
        return busy(x, forward_ns)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return busy(gradient, ctx.backward_ns), None, None


def busy(x: torch.Tensor, ns: int) -> torch.Tensor:
    """A copy of x, which keeps its device busy for so long."""
    planted.plan_next(ns)
    return x * 1


class Layer(nn.Module):
    """Keeps its device busy: for so many nanoseconds in forward, and in backward."""

    def __init__(self, forward_ns: int, backward_ns: int = 0, device: int = 0) -> None:
        super().__init__()
        self.times = forward_ns, backward_ns
        self.weight = nn.Parameter(torch.zeros(4, device=f"cuda:{device}"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Planted.apply(x * self.weight, *self.times)
        return found


def device_ns(profile: Profile) -> dict[tuple[str, str], int]:
    """Own device time by row and phase, as far as there is some."""
    found: defaultdict[tuple[str, str], int] = defaultdict(int)
    for row in profile.rows():
        for phase, totals in row.phases.items():
            found[row.name, phase] += totals.device_self_ns
    return {place: ns for place, ns in found.items() if ns}


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
