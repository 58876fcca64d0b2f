"""Modules on several devices in one process, none of which sets the current one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.devices.cuda import planted
from tests.devices.cuda.work import Layer, busy, device_ns
from torchprof_hooks import profile, region

pytestmark = pytest.mark.gpu
OPTIONS = pytest.mark.parametrize("functions", [False, True])
STEPS = 7


class Placed(nn.Module):
    """Layers, each on its device; what moves between them does so in here."""

    def __init__(self, *layers: nn.Module, own_ns: int = 0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.own_ns = own_ns

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x.to(next(layer.parameters()).device))
        return busy(x, self.own_ns) if self.own_ns else x


def on_devices(count: int) -> Placed:
    """A layer on each; the one on device n takes n + 1 ms, and 10 times that back."""
    planted.put(devices=count)
    return Placed(
        *(Layer((n + 1) * 10**6, (n + 1) * 10**7, device=n) for n in range(count))
    )


def expected(count: int, calls: int, phases: tuple[str, ...]) -> dict[Any, int]:
    times = {"forward": 10**6, "backward": 10**7}
    return {
        (f"Placed.layers.{n}", phase): calls * (n + 1) * times[phase]
        for n in range(count)
        for phase in phases
    }


def synchronize(count: int) -> None:
    for n in range(count):
        torch.cuda.synchronize(n)


def leaf() -> torch.Tensor:
    return torch.zeros(4, device="cuda:0", requires_grad=True)


@OPTIONS
@pytest.mark.parametrize("count", [2, 4])
def test_each_layer_has_the_time_of_its_own_device(count: int, functions: bool) -> None:
    model, x = on_devices(count), leaf()
    with profile(functions=functions) as prof:
        for _ in range(STEPS):
            model(x).sum().backward()

    found = device_ns(prof.profile)
    if functions:  # whose rows are those of the functions
        assert sum(found.values()) == sum(
            expected(count, STEPS, ("forward", "backward")).values()
        )
        assert not {name for name, _ in found if "outside" in name}
    else:
        assert found == expected(count, STEPS, ("forward", "backward"))


@pytest.mark.parametrize("count", [2, 4])
def test_inference(count: int) -> None:
    model, x = on_devices(count), leaf()
    with torch.inference_mode(), profile() as prof:
        for _ in range(STEPS):
            model(x)
            synchronize(count)  # else what moves to a device waits for that

    assert device_ns(prof.profile) == expected(count, STEPS, ("forward",))


def test_what_adds_to_a_gradient_is_the_modules_whose_parameter_that_is() -> None:
    model, x = on_devices(2), torch.zeros(4, device="cuda:0")
    planted.plan("add", 300)
    with profile() as prof:
        for _ in range(STEPS):
            model(x).sum().backward()

    found = device_ns(prof.profile)
    for n in range(2):
        backward_ns = STEPS * (n + 1) * 10**7 + (STEPS - 1) * 300  # the first is kept
        assert found[f"Placed.layers.{n}", "backward"] == backward_ns


def test_a_pipeline_whose_devices_work_at_once() -> None:
    model, x = on_devices(4), leaf()
    batches = [x] * 8
    with profile() as prof:
        for _ in range(STEPS):
            torch.stack([model(batch) for batch in batches]).sum().backward()

    # A device waits for the one that it gets something from: in forward, that is time
    # of the model, which copies; in backward, of what the device was given meanwhile.
    found = device_ns(prof.profile)
    for place, ns in expected(4, 8 * STEPS, ("forward",)).items():
        assert found[place] == ns
    for place, ns in expected(4, 8 * STEPS, ("backward",)).items():
        assert found[place] >= ns
    last = "Placed.layers.3", "backward"  # it gets nothing in backward
    assert found[last] == expected(4, 8 * STEPS, ("backward",))[last]
    assert {place[0] for place in found} <= {
        "Placed",
        *(name for name, _ in expected(4, 1, ("forward",))),
    }
    spans = [ran for ran in planted.ran() if ran.end_ns > ran.start_ns]
    assert _overlap(spans)  # else it would show nothing


def _overlap(spans: list[planted.Ran]) -> bool:
    by_begin = sorted(spans, key=lambda ran: ran.start_ns)
    return any(b.start_ns < a.end_ns for a, b in pairwise(by_begin))


def test_the_device_of_the_whole_model_is_not_the_current_one() -> None:
    model = nn.Sequential(*(Layer(n * 1000, n * 3000, device=1) for n in (1, 2, 3)))
    x = torch.zeros(4, device="cuda:1", requires_grad=True)
    with profile() as prof:
        for _ in range(STEPS):
            model(x).sum().backward()

    assert torch.cuda.current_device() == 0
    assert device_ns(prof.profile) == {
        (f"Sequential.{n}", phase): STEPS * (n + 1) * ns
        for n in range(3)
        for phase, ns in (("forward", 1000), ("backward", 3000))
    }


def test_the_current_device_is_none_of_those_in_use() -> None:
    planted.put(devices=3)
    model = nn.Sequential(Layer(1000, device=1), Layer(3000, device=1))
    head, x = Layer(50, device=2), torch.zeros(4, device="cuda:1")
    with torch.no_grad(), profile() as prof:
        for _ in range(STEPS):
            head(model(x).to("cuda:2"))

    assert device_ns(prof.profile) == {
        ("Sequential.0", "forward"): STEPS * 1000,
        ("Sequential.1", "forward"): STEPS * 3000,
        ("Layer", "forward"): STEPS * 50,
    }


def test_work_of_the_caller_between_calls_on_other_devices() -> None:
    planted.put(devices=2)
    model = Placed(Layer(1000, device=1), Layer(10, device=0), own_ns=200)
    x = leaf()
    with torch.no_grad(), profile() as prof:
        for _ in range(STEPS):
            busy(model(busy(x, 5)), 7)

    # The first device waits for the second one before what comes on it.
    found = device_ns(prof.profile)
    assert found.pop(("Placed.layers.0", "forward")) == STEPS * 1000
    assert found.pop(("Placed.layers.1", "forward")) == STEPS * 10


def test_events_are_used_again_on_their_own_devices() -> None:
    x = [torch.zeros(4, device=f"cuda:{n}") for n in range(2)]
    layers = [[Layer(1000 + 10 * n, device=on) for n in range(40)] for on in range(2)]
    models = [nn.Sequential(*each) for each in layers]
    with torch.no_grad(), profile() as prof, region("all"):  # in which no step ends
        for _ in range(20):  # 3200 stamps
            for on in range(2):
                models[on](x[on])
            synchronize(2)

    assert planted.number("bad records") == 0
    found = device_ns(prof.profile)
    for name in ("Sequential", "Sequential#2"):
        for n in range(40):
            assert found[f"{name}.{n}", "forward"] == 20 * (1000 + 10 * n)


def test_work_on_a_device_that_nobody_expects_is_nobodys() -> None:
    class Elsewhere(nn.Module):
        """Has no parameters, and works on a device that is not the current one."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return busy(x, 5000)

    here, there, elsewhere = Layer(30, device=0), Layer(1000, device=1), Elsewhere()
    x = [torch.zeros(4, device=f"cuda:{n}") for n in range(2)]
    with torch.no_grad(), profile() as prof:
        for _ in range(STEPS):
            here(x[0])
            there(x[1])
            elsewhere(x[1])

    assert device_ns(prof.profile) == {
        ("Layer", "forward"): STEPS * 30,
        ("Layer#2", "forward"): STEPS * 1000,
    }
    assert "nobody's device time" in " ".join(prof.profile.not_measured)


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_on_the_other_device(reentrant: bool) -> None:
    first = Layer(1000, 20_000, device=0)
    # The last one needs what the one before has computed.
    second = nn.Sequential(Layer(3000, 50_000, device=1), Layer(0, device=1))
    x = leaf()
    with profile() as prof:
        for _ in range(STEPS):
            y = first(x).to("cuda:1")
            checkpoint(second, y, use_reentrant=reentrant).sum().backward()

    assert device_ns(prof.profile) == {
        ("Layer", "forward"): STEPS * 1000,
        ("Layer", "backward"): STEPS * 20_000,
        ("Sequential.0", "forward"): STEPS * 3000,
        ("Sequential.0", "recompute"): STEPS * 3000,
        ("Sequential.0", "backward"): STEPS * 50_000,
    }


def test_a_model_that_moves_to_another_device() -> None:
    model, head = Layer(1000, device=0), Layer(30, device=0)
    x = torch.zeros(4, device="cuda:0")
    with torch.no_grad(), profile() as prof:
        for index in (0, 0, 0, 1, 1):
            model.to(f"cuda:{index}")
            head(model(x.to(f"cuda:{index}")).to("cuda:0"))
            synchronize(2)

    # What it does there is nobody's, and on no other row.
    assert device_ns(prof.profile) == {
        ("Layer", "forward"): 3 * 1000,
        ("Layer#2", "forward"): 5 * 30,
    }
