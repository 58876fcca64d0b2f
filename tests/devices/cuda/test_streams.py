"""Times of modules on several streams of a device, and in several threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from tests.devices.cuda.work import Layer, device_ns
from torchprof_hooks import profile

pytestmark = pytest.mark.gpu
STEPS = 8  # all of them are stamped


class OnStream(nn.Module):
    """Runs what is inside on a stream of its own. joins: each waits for the other."""

    def __init__(self, inner: nn.Module, joins: bool) -> None:
        super().__init__()
        self.inner, self.joins = inner, joins
        self.stream = torch.cuda.Stream()

    def forward(self, x: torch.Tensor) -> Any:
        here = torch.cuda.current_stream()
        if self.joins:
            self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            found = self.inner(x)
        if self.joins:
            here.wait_stream(self.stream)
        return found


def test_a_layer_on_a_stream_of_its_own() -> None:
    side = OnStream(Layer(50_000, 7000), joins=True)
    model = nn.Sequential(Layer(3000, 900), side, Layer(400, 20_000))
    x = torch.zeros(4, device="cuda", requires_grad=True)
    with profile() as prof:
        for _ in range(STEPS):
            model(x).sum().backward()

    assert device_ns(prof.profile) == {
        ("Sequential.0", "forward"): STEPS * 3000,
        ("Sequential.0", "backward"): STEPS * 900,
        ("Sequential.1.inner", "forward"): STEPS * 50_000,
        ("Sequential.1.inner", "backward"): STEPS * 7000,
        ("Sequential.2", "forward"): STEPS * 400,
        ("Sequential.2", "backward"): STEPS * 20_000,
    }


def test_a_model_on_a_side_stream() -> None:
    model = nn.Sequential(Layer(3000, 900), Layer(400, 20_000))
    x = torch.zeros(4, device="cuda", requires_grad=True)
    with profile() as prof, torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(STEPS):
            model(x).sum().backward()

    assert device_ns(prof.profile) == {
        ("Sequential.0", "forward"): STEPS * 3000,
        ("Sequential.0", "backward"): STEPS * 900,
        ("Sequential.1", "forward"): STEPS * 400,
        ("Sequential.1", "backward"): STEPS * 20_000,
    }


def test_layers_that_run_side_by_side() -> None:
    model = nn.Sequential(Layer(3000), OnStream(Layer(50_000), joins=False), Layer(400))
    x = torch.zeros(4, device="cuda")
    with torch.no_grad(), profile() as prof:
        for _ in range(STEPS):
            model(x)

    assert device_ns(prof.profile) == {
        ("Sequential.0", "forward"): STEPS * 3000,
        ("Sequential.1.inner", "forward"): STEPS * 50_000,
        ("Sequential.2", "forward"): STEPS * 400,
    }


class Leaves(Layer):
    """Leaves another stream the current one, on which nothing waits for its work."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = super().forward(x)
        torch.cuda.set_stream(torch.cuda.Stream())
        return found


def test_a_call_that_ends_on_another_stream() -> None:
    model, after = Leaves(3000), Layer(500)
    x = torch.zeros(4, device="cuda")
    with torch.no_grad(), profile() as prof:
        for _ in range(STEPS):
            after(model(x))

    # Where it ends, its work has not begun.
    assert device_ns(prof.profile) == {("Layer", "forward"): STEPS * 500}


def test_threads_with_streams_of_their_own() -> None:
    with profile() as prof:

        def work(number: int) -> None:
            model = nn.Sequential(*(Layer(1000 * number) for _ in range(number)))
            x = torch.zeros(4, device="cuda")
            with torch.no_grad(), prof, torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(STEPS):
                    model(x)

        threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    found = device_ns(prof.profile)
    assert sum(found.values()) == STEPS * 1000 * (1 + 2 * 2 + 3 * 3)
