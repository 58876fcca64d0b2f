"""Models that are spread over processes in every way that torch has; measured, as they
train. Each process of a group calls `profiles`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import torchprof_hooks
from tests.ranks.processes import Late
from torchprof_hooks import Profile

STEPS = 2
SIZE = 32
_IMPORTED = (
    *("torch._dynamo", "torch.distributed.device_mesh", "torch.distributed.fsdp"),
    *("torch.distributed.tensor.parallel", "torch.distributed.optim"),
    "torch.distributed.pipelining",
)

Train = Callable[[], list[Any]]


def import_all() -> None:
    """What takes seconds, together: to be done before there are processes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _IMPORTED:
            import_module(name)


class Net(nn.Sequential):
    def __init__(self, late: Late) -> None:
        torch.manual_seed(0)
        super().__init__(nn.Linear(SIZE, SIZE), late, nn.Linear(SIZE, SIZE))


def inputs(step: int) -> torch.Tensor:
    return torch.randn(4, SIZE, generator=torch.Generator().manual_seed(step))


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    losses = []
    for step in range(STEPS):
        loss = model(inputs(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def data_parallel(model: Net) -> Train:
    parallel = DistributedDataParallel(model)
    return partial(train, parallel, sgd(parallel))


def sharded(model: Net) -> Train:
    fsdp: Any = import_module("torch.distributed.fsdp")
    for layer in model[0], model[2]:
        fsdp.fully_shard(layer)
    fsdp.fully_shard(model)
    return partial(train, model, sgd(model))


def zero(model: Net) -> Train:
    kind: Any = import_module("torch.distributed.optim").ZeroRedundancyOptimizer
    optimizer = kind(model.parameters(), torch.optim.SGD, lr=0.1)
    return partial(train, model, optimizer)


def tensor_parallel(model: Net) -> Train:
    meshes: Any = import_module("torch.distributed.device_mesh")
    parallel: Any = import_module("torch.distributed.tensor.parallel")
    mesh = meshes.init_device_mesh("cpu", (distributed.get_world_size(),))
    plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, mesh, plan)
    return partial(train, model, sgd(model))


def pipeline(model: Net) -> Train:
    pipelining: Any = import_module("torch.distributed.pipelining")
    rank, count = distributed.get_rank(), distributed.get_world_size()
    stage = pipelining.PipelineStage(model, rank, count, torch.device("cpu"))
    schedule = pipelining.ScheduleGPipe(stage, count, loss_fn=nn.functional.mse_loss)

    def run() -> list[Any]:
        losses: list[Any] = []
        for step in range(STEPS):
            given = (inputs(step),) if rank == 0 else ()
            is_last = rank == count - 1
            last: Any = {"target": inputs(step), "losses": losses} if is_last else {}
            schedule.step(*given, **last)
        return [loss.item() for loss in losses]

    return run


def by_hand(model: Net) -> Train:
    """Everybody tells the next process, waits for a sum, and for all parts."""
    rank, count = distributed.get_rank(), distributed.get_world_size()

    def run() -> list[Any]:
        found = []
        for step in range(STEPS):
            x = model(inputs(step)).detach()
            given = torch.zeros_like(x)
            begun: Any = [
                distributed.isend(x, (rank + 1) % count),
                distributed.irecv(given, (rank - 1) % count),
            ]
            for work in begun:
                work.wait()
            distributed.all_reduce(given)
            later: Any = distributed.all_gather(
                [torch.zeros_like(given) for _ in range(count)], given, async_op=True
            )
            later.wait()
            found.append(given.sum().item())
        return found

    return run


#: What is done, and what that is called in the rows of those who wait for the last.
KINDS: dict[str, tuple[Callable[[Net], Train], set[str]]] = {
    "data parallel": (data_parallel, {"(waiting for gradients)"}),
    "sharded": (
        sharded,
        {
            "(communication) all_gather_into_tensor",
            "(communication) reduce_scatter_tensor",
        },
    ),
    "zero": (zero, {"(communication) broadcast"}),
    "tensor parallel": (tensor_parallel, {"(communication) wait_tensor"}),
    "pipeline": (pipeline, {"(communication) recv"}),
    "by hand": (
        by_hand,
        {
            "(communication) send",
            "(communication) recv",
            "(communication) all_reduce",
            "(communication) all_gather",
        },
    ),
}


def profiles(rank: int, kinds: Iterable[str]) -> dict[str, Profile]:
    """What is measured; fails if that had an influence."""
    warnings.simplefilter("ignore")
    return {kind: _measured(kind) for kind in kinds}


def functions_of_shards(rank: int) -> Profile:
    """Those of a model that FSDP spreads, of which nobody is late."""
    warnings.simplefilter("ignore")
    return _measured("sharded", Late(0), functions=True)


def _measured(kind: str, late: Late | None = None, functions: bool = False) -> Profile:
    make = KINDS[kind][0]
    expected = make(Net(Late(0)))()
    run = make(Net(late or Late()))
    distributed.barrier()
    with torchprof_hooks.profile(functions=functions) as prof:
        found = run()
    assert found == expected, f"{kind}: {found}, not {expected}"
    return prof.profile
