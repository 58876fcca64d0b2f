"""A program whose backward passes run in a thread of the engine's, as on a GPU.

torch gives each device that is not the CPU such a thread. Run as a script, it prints
what is measured of each of `PROGRAMS`, on the CPU and, with the native core, on a
planted device. It forks for each: threads and numbers of nodes are to be new ones.
"""

from __future__ import annotations

import json
import os
import threading
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchprof_hooks
from tests.devices.accelerator.device import build, load
from tests.fake_clock import MS, burn, fake_clock
from torchprof_hooks.kernel.core import CORE

STEPS = 3
#: Nodes that the thread of the program makes first: numbers of both are different.
NODES_BEFORE = 2000
#: One pass through a model, or through a checkpoint of it.
PLAIN = ("plain", "checkpoint")
#: With penalties on gradients, forces of an energy: passes that make graphs of their
#: own, where gradients are asked for "outside" of the model, "inside" of its forward,
#: or "backward", inside of that; or where "nothing" uses the graph; or "alone", of a
#: model of one layer that is open until a pass ends.
GRAPHS = ("outside", "inside", "backward", "nothing", "alone")
PROGRAMS = (*PLAIN, *GRAPHS)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ms: int, differentiates: bool) -> Any:
        ctx.ms, ctx.differentiates = ms, differentiates
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        burn(ctx.ms)
        if ctx.differentiates:
            with torch.enable_grad():
                inner = grads[0].detach().requires_grad_()
                torch.autograd.grad(inner.tanh().sum(), inner, create_graph=True)
        return OfBackward.apply(grads[0], ctx.ms), None, None


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
    def __init__(self, ms: int, program: str) -> None:
        super().__init__()
        self.ms, self.differentiates = ms, program == "backward"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Twice.apply(x, self.ms, self.differentiates)
        return result.tanh()


class Net(nn.Module):
    def __init__(self, program: str) -> None:
        super().__init__()
        self.is_penalized = program == "inside"
        self.a, self.b, self.c = (Layer(ms, program) for ms in (1, 20, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.c(self.b(self.a(x))).sum()
        return y + gradient(y, x).sum() if self.is_penalized else y


def gradient(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    [found] = torch.autograd.grad(y, x, create_graph=True)
    return found


class Alone(Layer):
    """A model of one layer, which has made all nodes."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x).sum()


def step(model: nn.Module, x: torch.Tensor, program: str) -> None:
    if program == "checkpoint":
        y = checkpoint(model, x, use_reentrant=True, preserve_rng_state=False)
    else:
        y = model(x)
    if program in {"outside", "alone"}:
        y = y + gradient(y, x).sum()
    if program == "nothing":
        y.backward(create_graph=True)
    y.backward()


def run(program: str, place: str, functions: bool = False) -> dict[str, Any]:
    """Calls, and milliseconds with those inside, of each row and phase."""
    counted = torch.ones(1, requires_grad=True)
    for _ in range(NODES_BEFORE):
        counted * 1
    threads = set()
    model = Alone(1, program) if program == "alone" else Net(program)
    with torchprof_hooks.profile(functions=functions) as prof:
        for _ in range(STEPS):
            on = "planted" if place == "device" else "cpu"
            x = torch.ones(3, device=on, requires_grad=True)
            x.register_hook(lambda grad: threads.add(threading.get_ident()))
            step(model, x, program)
    assert threads
    assert (threading.get_ident() in threads) == (place == "cpu")
    assert not prof.profile.undivided_passes
    return {
        row.name: {
            phase: (sums.calls, sums.cumulative_ns / MS)
            for phase, sums in row.phases.items()
        }
        for row in prof.profile.rows()
    }


def print_in_fork(*question: Any) -> None:
    child = os.fork()
    if not child:
        try:
            print(json.dumps([question, run(*question)]), flush=True)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


if __name__ == "__main__":
    places = ["cpu"]
    if CORE.module is not None:
        load(build())
        places.append("device")
    with pytest.MonkeyPatch.context() as patched, fake_clock(patched):
        for question in product(PROGRAMS, places, (False, True)):
            print_in_fork(*question)
