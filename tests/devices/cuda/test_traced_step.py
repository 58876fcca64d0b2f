"""Kernels of the traced step are those of what has launched them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from tests.devices.cuda import planted
from tests.devices.cuda.work import Layer, busy
from torchprof_hooks import Profile, profile
from torchprof_hooks.profiles.trace.device_step import DeviceUse

pytestmark = pytest.mark.gpu
NS = 20_000
OPTIMIZER = "(optimizer) SGD", "optimizer"


def use_of(found: Profile) -> DeviceUse:
    step = found.device_step
    assert step is not None
    assert not step.reason
    [use] = step.devices
    return use


def kernels_of(use: DeviceUse) -> dict[tuple[str, str], int]:
    """How many kernels each place has launched; all of them took `NS`."""
    for row in use.kernels:
        for kernel in row.kernels:
            assert kernel.busy_ns == pytest.approx(kernel.calls * NS, rel=0.05)
    return {
        (row.module, row.phase): sum(kernel.calls for kernel in row.kernels)
        for row in use.kernels
    }


def plant() -> None:
    planted.put(real_clock=1, default_ns=NS, gemm_ns=NS)


class Made(Dataset[torch.Tensor]):
    """A data set that is made on the device."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> torch.Tensor:
        return torch.ones(8, device="cuda") + 1


@pytest.mark.parametrize("steps", [5, 6, 20])
def test_what_ends_the_step_has_its_kernels(steps: int) -> None:
    plant()
    model, x = nn.Linear(8, 8).cuda(), torch.zeros(4, 8, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with profile(kernels=True) as prof:
        for _ in range(steps):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        torch.cuda.synchronize()

    found = kernels_of(use_of(prof.profile))
    assert found.pop(("Linear", "backward")) > 1
    assert found == {
        ("Linear", "forward"): 1,
        ("(outside modules)", "outside"): 2,  # the sum, and a gradient for it
        OPTIMIZER: 1,
    }


def test_every_interruption_has_its_kernels() -> None:
    plant()
    # What is recomputed ends with the input of the second one.
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def batches() -> Iterator[torch.Tensor]:
        while True:
            yield from DataLoader(Made(), batch_size=2, collate_fn=sum)

    loaded = batches()

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        x = next(loaded).expand(4, 8)
        found: torch.Tensor = checkpoint(model, x, use_reentrant=False).sum()
        found.backward()
        return found

    with profile(kernels=True) as prof:
        for _ in range(6):
            optimizer.step(loss)
        torch.cuda.synchronize()

    found = kernels_of(use_of(prof.profile))
    assert found[OPTIMIZER] == found["Sequential.1", "forward"] == 1
    assert found["(data loading)", "data"] == 2 * 2 + 2  # ones, ones + 1, and their sum
    assert found["Sequential.0", "recompute"] == found["Sequential.0", "forward"]
    assert {place for place in found if place[1] != "backward"} == {
        OPTIMIZER,
        ("Sequential.0", "forward"),
        ("Sequential.0", "recompute"),
        ("Sequential.1", "forward"),
        ("(data loading)", "data"),
        ("(outside modules)", "outside"),
    }


#: Long enough for the machine's clock.
LONG_NS = 20_000_000


def traced(model: nn.Module, end: Callable[[], object] = lambda: None) -> Profile:
    """Of steps of a model whose kernels take the times that they are planted with.

    end: called at the end of each step, before the optimizer.
    """
    planted.put(real_clock=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.zeros(4, device="cuda", requires_grad=True)
    with profile(kernels=True) as prof:
        for _ in range(5):
            optimizer.zero_grad()
            model(x).sum().backward()
            end()
            optimizer.step()
        torch.cuda.synchronize()
    return prof.profile


def busy_ns(use: DeviceUse) -> dict[tuple[str, str], Any]:
    """How long kernels of each place ran, as far as they took any time."""
    found = {(row.module, row.phase): row.busy_ns for row in use.kernels}
    return {place: pytest.approx(ns, abs=100_000) for place, ns in found.items() if ns}


def test_kernels_that_run_after_the_step() -> None:
    layers = Layer(LONG_NS, 2 * LONG_NS), Layer(3 * LONG_NS, 4 * LONG_NS)
    found = traced(nn.Sequential(*layers))
    use = use_of(found)

    assert busy_ns(use) == {
        ("Sequential.0", "forward"): LONG_NS,
        ("Sequential.0", "backward"): 2 * LONG_NS,
        ("Sequential.1", "forward"): 3 * LONG_NS,
        ("Sequential.1", "backward"): 4 * LONG_NS,
    }
    assert found.device_step is not None
    assert found.device_step.step_ns < use.kernels_ns


def test_streams_that_are_busy_at_once() -> None:
    class Aside(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.cuda.stream(torch.cuda.Stream()):
                return super().forward(x)

    model = nn.Sequential(Layer(3 * LONG_NS), Aside(2 * LONG_NS))
    use = use_of(traced(model, torch.cuda.synchronize))
    assert busy_ns(use) == {
        ("Sequential.0", "forward"): 3 * LONG_NS,
        ("Sequential.1", "forward"): 2 * LONG_NS,
    }
    assert use.kernels_ns < 4 * LONG_NS


def test_each_device_has_kernels_of_its_own() -> None:
    class There(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.to("cuda:1")).to("cuda:0")

    found = traced(nn.Sequential(Layer(LONG_NS), There(3 * LONG_NS, device=1)))
    assert found.device_step is not None
    assert {use.device: busy_ns(use) for use in found.device_step.devices} == {
        "cuda:0": {("Sequential.0", "forward"): LONG_NS},
        "cuda:1": {("Sequential.1", "forward"): 3 * LONG_NS},
    }


def test_kernels_of_no_module() -> None:
    x = torch.zeros(4, device="cuda")

    def elsewhere() -> None:
        busy(x, 2 * LONG_NS)
        thread = threading.Thread(target=busy, args=(x, 3 * LONG_NS))
        thread.start()
        thread.join()

    assert busy_ns(use_of(traced(Layer(LONG_NS), elsewhere))) == {
        ("Layer", "forward"): LONG_NS,
        ("(outside modules)", "outside"): 2 * LONG_NS,
        ("(other threads)", "outside"): 3 * LONG_NS,
    }


def test_from_the_launch_on_nobody_waits_for_the_host() -> None:
    planted.put(latency_ns=LONG_NS)
    use = use_of(traced(Layer(0), torch.cuda.synchronize))
    rows = {row.module: row.idle_ns for row in use.rows}
    assert rows["(launched, not yet begun)"] >= 0.99 * LONG_NS
