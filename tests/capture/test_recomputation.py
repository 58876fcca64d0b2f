"""What torch does around the modules that a checkpoint calls again is recompute, not
the backward of the module whose tensors were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchprof_hooks
from tests.fake_clock import MS, burn
from tests.planted import Work
from torchprof_hooks import Profile

pytestmark = pytest.mark.usefixtures("clock")

X = torch.ones(3)


@contextmanager
def bookkeeping() -> Iterator[None]:
    """Stands around what is computed again, as random states and autocast do."""
    burn(20)
    try:
        yield
    finally:  # it is left by an exception as soon as all tensors are there
        burn(5)


def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), bookkeeping()


def again(function: Any, x: torch.Tensor) -> Any:
    return checkpoint(function, x, use_reentrant=False, context_fn=contexts)


def own_ms(profile: Profile) -> dict[tuple[str, str], float]:
    return {
        (row.name, phase): totals.self_ns / MS
        for row in profile.rows()
        for phase, totals in row.phases.items()
        if totals.self_ns
    }


@pytest.mark.parametrize("steps", [1, 2])
def test_around_an_outermost_module(steps: int) -> None:
    net = nn.Sequential(Work(1, 2), Work(3, 4))
    with torchprof_hooks.profile() as prof:
        for _ in range(steps):
            again(net, X.clone().requires_grad_()).sum().backward()
    assert own_ms(prof.profile) == {
        ("Sequential", "recompute"): 25 * steps,
        **{
            (f"Sequential.{n}", phase): milliseconds * steps
            for n, times in enumerate([(1, 2, 1), (3, 4, 3)])
            for phase, milliseconds in zip(
                ("forward", "backward", "recompute"), times, strict=True
            )
        },
    }
    rows = {row.name: row for row in prof.profile.rows()}
    assert rows["Sequential"].phases["recompute"].calls == steps
    assert prof.profile.aborted_calls == 0


class Block(nn.Module):
    """Has a part of itself computed again: a module, or a function."""

    def __init__(self, has_module: bool) -> None:
        super().__init__()
        self.work = Work(1, 2)
        self.has_module = has_module

    def part(self, x: torch.Tensor) -> torch.Tensor:
        burn(7)
        return x.sin()

    def forward(self, x: torch.Tensor) -> Any:
        if self.has_module:
            return again(self.work, x)
        return again(self.part, x)


def test_around_a_module_inside_of_another() -> None:
    with torchprof_hooks.profile() as prof:
        Block(True)(X.clone().requires_grad_()).sum().backward()
    assert own_ms(prof.profile) == {
        ("Block", "recompute"): 25,
        ("Block.work", "forward"): 1,
        ("Block.work", "backward"): 2,
        ("Block.work", "recompute"): 1,
    }


@pytest.mark.parametrize("functions", [False, True])
def test_around_a_function(functions: bool) -> None:
    with torchprof_hooks.profile(functions=functions) as prof:
        Block(False)(X.clone().requires_grad_()).sum().backward()
    assert own_ms(prof.profile) == {
        ("Block", "forward"): 7,
        ("Block", "recompute"): 32,
    }


def test_a_recomputation_that_fails_leaves_nothing_open() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch._C._current_graph_task_id() != -1:
                burn(1)
                raise KeyError("again")
            return x.sin()

    net, work = Fails(), Work(1, 2)
    with torchprof_hooks.profile() as prof:
        with pytest.raises(KeyError):
            again(net, X.clone().requires_grad_()).sum().backward()
        work(X).sum().backward()
    found = own_ms(prof.profile)
    assert (found["Work", "forward"], found["Work", "backward"]) == (1, 2)
    assert ("Work", "recompute") not in found
    assert prof.profile.wall_ns == sum(
        totals.self_ns for totals in prof.profile.cells.values()
    )
