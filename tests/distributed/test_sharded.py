"""Communication of what shards parameters, optimizers, layers and tensors."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo  # here, instead of by torch in each process
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import torchprof_hooks
from tests.distributed.processes import (
    PLANTED,
    Late,
    is_complete,
    milliseconds_by_phase,
    run_processes,
)
from torchprof_hooks import Profile

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch scripts some of its own optimizers
    from torch.distributed.optim import ZeroRedundancyOptimizer

STEPS = 2
SIZE = 32


def new_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(SIZE, SIZE), Late(), nn.Linear(SIZE, SIZE))


def inputs(step: int) -> torch.Tensor:
    return torch.randn(4, SIZE, generator=torch.Generator().manual_seed(step))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for step in range(STEPS):
        loss = model(inputs(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def fsdp() -> Any:
    model = new_net()
    for layer in model[0], model[2]:
        fully_shard(layer)
    fully_shard(model)
    return partial(train, model, torch.optim.SGD(model.parameters(), 0.1))


def zero() -> Any:
    model = new_net()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    return partial(train, model, optimizer)


def tensor_parallel() -> Any:
    model = new_net()
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    return partial(train, model, torch.optim.SGD(model.parameters(), 0.1))


def pipeline() -> Any:
    rank, count = distributed.get_rank(), distributed.get_world_size()
    model = nn.Sequential(nn.Linear(SIZE, SIZE), Late())
    stage = PipelineStage(model, rank, count, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=nn.functional.mse_loss)

    def run() -> list[float]:
        for step in range(STEPS):
            given = (inputs(step),) if rank == 0 else ()
            last: Any = {"target": inputs(step), "losses": []} if rank else {}
            schedule.step(*given, **last)
        return []

    return run


#: How a model is spread over processes, and the collectives that it takes.
KINDS = {
    "fsdp": (fsdp, {"all_gather_into_tensor", "reduce_scatter_tensor"}),
    "zero": (zero, {"broadcast"}),
    "tensor parallel": (tensor_parallel, {"all_reduce"}),
    "pipeline": (pipeline, {"recv"}),
}


def profiled(rank: int, kind: str) -> tuple[Any, Any, Profile]:
    warnings.simplefilter("ignore")
    bare = KINDS[kind][0]()()
    run = KINDS[kind][0]()
    with torchprof_hooks.profile() as prof:
        found = run()
    return bare, found, prof.profile


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_for_the_last_process_is_communication(kind: str) -> None:
    answers = run_processes(partial(profiled, kind=kind))
    for bare, found, profile in answers:
        assert found == bare
        assert is_complete(profile)
    waiting, late = (profile for _, _, profile in answers)
    names = {r.name for r in waiting.rows() if r.kind == "communication"}
    assert {f"(communication) {name}" for name in KINDS[kind][1]} <= names
    planted = STEPS * PLANTED
    phases = milliseconds_by_phase(waiting)
    assert phases["communication"] > 0.6 * planted
    assert phases.get("forward", 0) + phases["backward"] < 0.3 * planted
    assert milliseconds_by_phase(late)["forward"] >= 0.99 * planted
