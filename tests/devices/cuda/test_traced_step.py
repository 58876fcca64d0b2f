"""Kernels of the traced step are those of what has launched them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from tests.devices.cuda import planted
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
