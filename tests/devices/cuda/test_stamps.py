"""Each stamp is on the stream that the call works on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.devices.cuda import planted
from tests.devices.cuda.work import Layer, busy, device_ns
from torchprof_hooks import profile, region

pytestmark = pytest.mark.gpu
STEPS = 7


def leaf(device: int = 0) -> torch.Tensor:
    return torch.zeros(4, device=f"cuda:{device}", requires_grad=True)


def test_a_model_on_a_side_stream() -> None:
    model, x = nn.Sequential(Layer(1000, 20_000), Layer(3000, 50_000)), leaf()
    busy(x.detach(), 10**9)  # the default stream is far behind
    with torch.cuda.stream(torch.cuda.Stream()), profile() as prof:
        for _ in range(STEPS):
            model(x).sum().backward()

    assert device_ns(prof.profile) == {
        ("Sequential.0", "forward"): STEPS * 1000,
        ("Sequential.0", "backward"): STEPS * 20_000,
        ("Sequential.1", "forward"): STEPS * 3000,
        ("Sequential.1", "backward"): STEPS * 50_000,
    }


def test_a_stream_that_is_thousands_of_stamps_behind_the_other() -> None:
    behind, idle = Layer(1000), Layer(0)
    x, side = leaf(), torch.cuda.Stream()
    with torch.no_grad(), profile() as prof, region("all"):  # in which no step ends
        for _ in range(2000):
            with torch.cuda.stream(side):
                behind(x)
            idle(x)
        assert planted.number("waits") == 0

    # From one stream to the other and back is a time below zero and one above.
    assert device_ns(prof.profile) == {("Layer", "forward"): 2000 * 1000}


class OnBoth(nn.Module):
    """Has a layer on a side stream, and goes on in the caller's."""

    def __init__(self, device: int) -> None:
        super().__init__()
        self.layer = Layer(1000, device=device)
        self.side = torch.cuda.Stream(device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        here = torch.cuda.current_stream(x.device)
        with torch.cuda.stream(self.side):
            y = self.layer(x)
        here.wait_stream(self.side)
        return busy(y, 500)


@pytest.mark.parametrize("device", [0, 1])
def test_a_call_that_goes_on_in_another_stream(device: int) -> None:
    model, x = OnBoth(device), leaf(device)
    kept = leaf(0)  # the current device is in use
    with torch.no_grad(), profile() as prof:
        for _ in range(STEPS):
            model(x)
            torch.cuda.synchronize(device)
    del kept

    assert device_ns(prof.profile) == {
        ("OnBoth", "forward"): STEPS * 500,
        ("OnBoth.layer", "forward"): STEPS * 1000,
    }


def test_backward_begins_on_a_side_stream_of_another_device() -> None:
    model, x = Layer(1000, 20_000), leaf()
    other = leaf(1).detach()
    with torch.cuda.device(1), profile() as prof:
        for _ in range(STEPS):
            loss = model(x).sum()
            busy(other, 10**6)  # on its default stream
            with torch.cuda.stream(torch.cuda.Stream(1)):
                loss.backward()

    assert device_ns(prof.profile) == {
        ("Layer", "forward"): STEPS * 1000,
        ("Layer", "backward"): STEPS * 20_000,
    }


def test_the_stream_of_the_device_that_is_left_is_captured() -> None:
    here, captured = Layer(1000), Layer(3000, device=1)
    x, y, graph = leaf(), leaf(1), torch.cuda.CUDAGraph()
    with torch.no_grad(), profile() as prof:
        here(x)
        captured(y)
        with torch.cuda.device(1), torch.cuda.graph(graph):
            captured(y)
            here(x)
            captured(y)

    assert planted.number("captures") == 1
    assert planted.number("violations") == 0
    assert planted.number("timing records in captures") == 0
    assert device_ns(prof.profile)["Layer", "forward"] == 2 * 1000
