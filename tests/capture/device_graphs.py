"""Backward passes in a device's thread that make graphs of their own: penalties on
gradients, forces of an energy.

Prints the milliseconds of the backward of each row, as JSON; planted work alone moves
the clock. Run as a script: see `tests.capture.device_thread`.

Options: "device" or "cpu"; and where gradients are asked for: "outside" of the model,
"inside" of its forward, or "backward", inside of that; or "nothing", where a pass makes
a graph that nobody uses; or "alone", of a model whose layer is open until a pass ends.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import backend_registration

import torchprof_hooks
from tests.capture.device_thread import Module, OnDevice
from tests.fake_clock import MS, burn, fake_clock

STEPS = 3
#: Nodes that the thread of the program makes first: numbers of both are different.
NODES_BEFORE = 2000
WHERE = next(name for name in sys.argv[1:] if name not in {"device", "cpu"})


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ms: int) -> torch.Tensor:
        ctx.ms = ms
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        burn(ctx.ms)
        if WHERE == "backward":
            with torch.enable_grad():
                inner = grads[0].detach().requires_grad_()
                torch.autograd.grad(inner.tanh().sum(), inner, create_graph=True)
        return OfBackward.apply(grads[0], ctx.ms), None


class OfBackward(torch.autograd.Function):
    """What the backward of `Twice` is made of: dear where that has a backward."""

    @staticmethod
    def forward(ctx: Any, grad: torch.Tensor, ms: int) -> torch.Tensor:
        ctx.ms = ms
        return grad * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        burn(100 * ctx.ms)
        return grads[0] * 2, None


class Layer(nn.Module):
    def __init__(self, ms: int) -> None:
        super().__init__()
        self.ms = ms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Twice.apply(x, self.ms)
        return result.tanh()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = Layer(1), Layer(20), Layer(2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        y = self.c(self.b(self.a(x))).sum()
        return y, gradient(y, x) if WHERE == "inside" else None


def gradient(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    [found] = torch.autograd.grad(y, x, create_graph=True)
    return found


class Alone(Layer):
    """A model of one layer, which has made all nodes."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x).sum(), None


def step(model: nn.Module, is_on_device: bool) -> None:
    numbers = torch.ones(3, requires_grad=not is_on_device)
    x: Any = OnDevice(numbers, requires_grad=True) if is_on_device else numbers
    y, penalty = model(x)
    if WHERE in {"outside", "alone"}:
        penalty = gradient(y, x)
    if WHERE == "nothing":
        y.backward(create_graph=True)
    (y if penalty is None else penalty.sum() + y).backward()


def run(is_on_device: bool) -> dict[str, float]:
    counted = torch.ones(1, requires_grad=True)
    for _ in range(NODES_BEFORE):
        counted * 1
    model = Alone(1) if WHERE == "alone" else Net()
    with pytest.MonkeyPatch.context() as patched, fake_clock(patched):
        with torchprof_hooks.profile() as prof:
            for _ in range(STEPS):
                step(model, is_on_device)
        assert not prof.profile.undivided_passes
        return {
            row.name: row.phases["backward"].cumulative_ns / MS
            for row in prof.profile.rows()
            if "backward" in row.phases
        }


if __name__ == "__main__":
    backend_registration._setup_privateuseone_for_python_backend(
        "made_up", backend_module=Module()
    )
    print(json.dumps(run("device" in sys.argv)))
    sys.stdout.flush()
    os._exit(0)
