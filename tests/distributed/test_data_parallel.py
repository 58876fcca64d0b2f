"""Under DistributedDataParallel, waiting for gradients is a row of its own, and not the
backward of the first layer."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo  # here, instead of by torch in each process
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchprof_hooks
from tests.distributed.processes import (
    PLANTED,
    Late,
    is_complete,
    milliseconds_by_name,
    milliseconds_by_phase,
    run_processes,
)
from torchprof_hooks import Profile

STEPS = 3

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several buckets": {"bucket_cap_mb": 0.001},
    "static graph": {"static_graph": True},
    "unused parameters": {"find_unused_parameters": True},
    "views of buckets": {"gradient_as_bucket_view": True},
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.late = Late()
        self.last = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.late(self.first(x)).relu())
        return out


def train(model: nn.Module, rank: int, steps: int = STEPS) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(10 * step + rank)
        loss = model(torch.randn(4, 32, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return [*found, *(p.detach().clone() for p in model.parameters())]


def profiled(rank: int, kind: str, **options: Any) -> Profile:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), **KINDS[kind])
    with torchprof_hooks.profile(**options) as prof:
        train(model, rank)
    return prof.profile


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_is_not_the_first_layers(kind: str) -> None:
    waiting, late = run_processes(partial(profiled, kind=kind))
    planted = STEPS * PLANTED
    for profile in (waiting, late):
        assert is_complete(profile)
        rows = {row.name: row for row in profile.rows()}
        assert rows["(waiting for gradients)"].kind == "waiting"
        assert rows["(waiting for gradients)"].calls == STEPS
    names, phases = milliseconds_by_name(waiting), milliseconds_by_phase(waiting)
    assert phases["waiting"] > 0.6 * planted
    assert names["(waiting for gradients)"] == phases["waiting"]
    assert phases["backward"] < 0.3 * planted
    assert milliseconds_by_phase(late)["waiting"] < 0.3 * planted
    late_row = next(row for row in late.rows() if row.class_name == "Late")
    assert late_row.phases["forward"].self_ns >= planted * 0.99e6
