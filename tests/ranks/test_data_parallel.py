"""Under DistributedDataParallel, waiting for gradients is a row of its own, and not the
backward of the first layer."""

from __future__ import annotations

import time
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo  # here, instead of by torch in each process
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchprof_hooks
from tests.ranks.processes import (
    PLANTED,
    Late,
    is_complete,
    milliseconds_by_name,
    milliseconds_by_phase,
    run_processes,
)
from tests.thorough import in_turns
from torchprof_hooks import Profile

pytestmark = pytest.mark.slow

STEPS = 3

KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "several buckets": {"bucket_cap_mb": 0.001},
    "static graph": {"static_graph": True},
    "unused parameters": {"find_unused_parameters": True},
    "views of buckets": {"gradient_as_bucket_view": True},
}


class Net(nn.Module):
    def __init__(self, late: float = PLANTED) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.late = Late(late)
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


@pytest.mark.parametrize("kind", in_turns(KINDS, 0, 2))
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
    assert phases["backward"] < phases["waiting"]
    late_row = next(row for row in late.rows() if row.class_name == "Late")
    assert late_row.phases["forward"].self_ns >= planted * 0.99e6
    times = waiting.step_times
    assert sum(bucket.steps for bucket in times.own) == STEPS
    waited_ns = times.steps_ns - sum(bucket.total_ns for bucket in times.own)
    assert waited_ns == pytest.approx(
        1e6 * (phases["waiting"] + phases.get("communication", 0)), rel=0.05
    )


def both(rank: int, kind: str) -> tuple[list[Any], list[Any]]:
    """What training gives, bare and under a profile."""
    found = []
    for manager in (nullcontext(), torchprof_hooks.profile(functions=True)):
        torch.manual_seed(0)
        model = DistributedDataParallel(Net(late=0), **KINDS[kind])
        with manager:
            found.append(train(model, rank))
    return found[0], found[1]


@pytest.mark.parametrize("kind", in_turns(KINDS, 1, 2))
def test_results_are_the_same(kind: str) -> None:
    for bare, measured in run_processes(partial(both, kind=kind)):
        torch.testing.assert_close(measured, bare, rtol=0, atol=0)


def without_gradients_of_others(rank: int) -> Profile:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    with torchprof_hooks.profile() as prof:
        with model.no_sync():
            model(torch.ones(4, 32)).sum().backward()
        Net()(torch.ones(4, 32)).sum().backward()  # in a group, but of its own
    return prof.profile


def test_a_pass_without_reduction_waits_for_nobody() -> None:
    for profile in run_processes(without_gradients_of_others):
        assert is_complete(profile)
        assert "waiting" not in milliseconds_by_phase(profile)


def broadcasting(rank: int) -> Profile:
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 32))
    )
    with torchprof_hooks.profile() as prof:
        for _ in range(STEPS):
            if rank == 0:  # whose buffers all have to have
                time.sleep(PLANTED / 1000)
            model(torch.ones(4, 32))
    return prof.profile


def test_buffers_that_are_waited_for_are_communication() -> None:
    first, last = run_processes(broadcasting)
    names = milliseconds_by_name(last)
    assert names["(communication) broadcast"] > 0.6 * STEPS * PLANTED
    assert names["DistributedDataParallel"] < names["(communication) broadcast"]
    assert milliseconds_by_name(first)["(outside modules)"] > 0.9 * STEPS * PLANTED
