"""Communicators inside of each other: who is compared with whom, and who is slow, in
processes that train in data, tensor and pipeline parallel at once."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

import torchprof_hooks
from tests.ranks.processes import run_processes
from tests.ranks.spread import SIZE, import_all, inputs, sgd
from torchprof_hooks import load_ranks
from torchprof_hooks.profiles.ranks.peers import coordinates

STEPS = 10
SLEEP_S = 0.06

Step = Callable[[int], None]


class Sleeps(nn.Module):
    """In the last process alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if distributed.get_rank() == distributed.get_world_size() - 1:
            time.sleep(SLEEP_S)
        return x


class Net(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(SIZE, SIZE), Sleeps(), nn.Linear(SIZE, SIZE))


def mesh_of(**sizes: int) -> Any:
    meshes: Any = import_module("torch.distributed.device_mesh")
    shape = tuple(sizes.values())
    return meshes.init_device_mesh("cpu", shape, mesh_dim_names=tuple(sizes))


def divided(model: nn.Module, mesh: Any) -> None:
    """Each layer is, over the processes of the mesh."""
    parallel: Any = import_module("torch.distributed.tensor.parallel")
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, mesh, plan)


def sharded(model: nn.Module, mesh: Any) -> None:
    fsdp: Any = import_module("torch.distributed.fsdp")
    fsdp.fully_shard(model, mesh=mesh)


def data_and_tensor() -> Step:
    mesh, model = mesh_of(dp=2, tp=2), Net()
    divided(model, mesh["tp"])
    sharded(model, mesh["dp"])
    optimizer = sgd(model)

    def step(number: int) -> None:
        model(inputs(number)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline(mesh: Any, model: nn.Module, after: Callable[[], object]) -> Step:
    """after: called between a step's backward and its optimizer."""
    pipelining: Any = import_module("torch.distributed.pipelining")
    group = mesh.get_group("pp")
    place, size = distributed.get_rank(group), distributed.get_world_size(group)
    stage = pipelining.PipelineStage(
        model, place, size, torch.device("cpu"), group=group
    )
    schedule = pipelining.ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)
    optimizer = sgd(model)

    def step(number: int) -> None:
        given = (inputs(number),) if place == 0 else ()
        last = {"target": inputs(number)} if place == size - 1 else {}
        schedule.step(*given, **last)
        after()
        optimizer.step()
        optimizer.zero_grad()

    return step


def pipeline_and_data() -> Step:
    mesh, model = mesh_of(pp=2, dp=2), Net()

    def sum_gradients() -> None:
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad, group=mesh.get_group("dp"))

    return pipeline(mesh, model, sum_gradients)


def all_three() -> Step:
    mesh, model = mesh_of(pp=2, dp=2, tp=2), Net()
    divided(model, mesh["tp"])
    sharded(model, mesh["dp"])
    return pipeline(mesh, model, lambda: None)


#: The processes it takes; their places, one after the other; and those that are
#: compared with each other.
KINDS: dict[str, tuple[Callable[[], Step], list[dict[str, int]], Any]] = {
    "data and tensor": (
        data_and_tensor,
        [{"dp": dp, "tp": tp} for dp in (0, 1) for tp in (0, 1)],
        ((0, 1, 2, 3),),
    ),
    "pipeline and data": (
        pipeline_and_data,
        [{"pp": pp, "dp": dp} for pp in (0, 1) for dp in (0, 1)],
        ((0, 1), (2, 3)),
    ),
    "all three": (
        all_three,
        [
            {"pp": pp, "dp": dp, "tp": tp}
            for pp in (0, 1)
            for dp in (0, 1)
            for tp in (0, 1)
        ],
        ((0, 1, 2, 3), (4, 5, 6, 7)),
    ),
}


def train(rank: int, make: Callable[[], Step], folder: Path) -> None:
    warnings.simplefilter("ignore")
    step = make()
    step(0)
    with torchprof_hooks.profile(save=folder / "profile.json", ranks_report=False):
        for number in range(STEPS):
            step(number)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.thorough] * (kind != "data and tensor"))
        for kind in KINDS
    ],
)
def test_the_slow_rank_among_those_that_do_the_same(kind: str, tmp_path: Path) -> None:
    import_all()
    make, places, peers = KINDS[kind]
    run_processes(partial(train, make=make, folder=tmp_path), len(places))
    ranks = load_ranks(tmp_path)
    assert [coordinates(rank) for rank in ranks.ranks] == places
    assert ranks.peers == peers
    names = {row.name for row in ranks.rows()}
    assert ("(communication) recv" in names) == ("pp" in places[0])
    verdict = ranks.verdict
    if verdict.noise_ns > verdict.lost_ns:  # a busy machine
        assert verdict.rank is None
        return
    assert verdict.rank == len(places) - 1
    assert verdict.reason is not None
    assert (verdict.reason.phase, verdict.reason.is_own) == ("forward", True)
    assert verdict.reason.row.endswith(".1")
    # Each of two micro-batches of a pipeline sleeps.
    calls = 2 if "pp" in places[0] else 1
    assert verdict.reason.excess_ns > 0.9e9 * calls * SLEEP_S
