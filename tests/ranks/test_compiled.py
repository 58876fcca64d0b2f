"""Compiled code is divided among modules where processes share a model's parameters or
gradients, too: on a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.attribution.test_compiled_code import folder, fresh_compiler
from tests.compiled import DIVIDED, Work, rows_of
from tests.fake_clock import burn, fake_clock
from tests.ranks.processes import run_processes
from tests.thorough import THOROUGH
from torchprof_hooks import profile

__all__ = ["folder", "fresh_compiler"]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: Modules that are looked at: how those around are called differs.
NAMES = ("0", "1", ".work", ".linear")
#: The layers' gradients are exchanged one by one.
WIDE = 600


class Block(nn.Module):
    def __init__(self, ms: float) -> None:
        super().__init__()
        self.work, self.linear = Work(ms), nn.Linear(WIDE, WIDE, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(self.work(x))


def net() -> nn.Sequential:
    return nn.Sequential(Block(1), Block(20))


def in_place(model: nn.Module) -> nn.Module:
    model.compile()
    return model


def blocks(model: nn.Module) -> nn.Module:
    for block in model.children():
        block.compile()
    return model


def averaged(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def sharded(model: nn.Module) -> nn.Module:
    for block in model.children():
        fully_shard(block)
    fully_shard(model)
    return model


Ways = tuple[Callable[[nn.Module], nn.Module], ...]


def rows(rank: int, ways: Ways) -> tuple[dict[str, Any], tuple[str, ...]]:
    model: nn.Module = net()
    for way in ways:
        model = way(model)
    with pytest.MonkeyPatch.context() as patch, fake_clock(patch):
        for _ in range(2):  # for the second time, nothing is compiled any more
            with profile() as prof:
                for _ in range(3):
                    burn(7)
                    given = torch.ones(2, WIDE, requires_grad=True)
                    model(given).sum().backward()
    found = prof.profile
    numbers = {
        row.name.partition(".")[2].removeprefix("module."): rows_of(found)[row.name]
        for row in found.rows()
        if row.kind == "module"
        and not row.class_name.endswith(("Sequential", "Parallel"))
    }
    return numbers, found.not_measured


@DIVIDED
@pytest.mark.parametrize(
    "ways",
    [
        (averaged, in_place),
        pytest.param((in_place, averaged), marks=THOROUGH),
        pytest.param((blocks, averaged), marks=THOROUGH),
        pytest.param((sharded, in_place), marks=THOROUGH),
        (sharded, blocks),
        pytest.param((blocks, sharded), marks=THOROUGH),
    ],
    ids=lambda ways: ", ".join(each.__name__ for each in ways),
)
def test_rows_are_those_of_the_same_model_as_written(ways: Ways) -> None:
    for found in run_processes(partial(rows, ways=ways)):
        assert found == (as_written(), ())


@cache
def as_written() -> dict[str, Any]:
    found: dict[str, Any]
    (found, said), _ = run_processes(partial(rows, ways=()))
    assert found["1.work"] == (3, 60, 3, 120, 0, 0)
    assert not said
    return found
