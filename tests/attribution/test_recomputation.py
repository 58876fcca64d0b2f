"""What torch does around the modules that a checkpoint calls again is recompute, not
the backward of the module whose tensors were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchprof_hooks
from tests.exact import calls, found, own_ms, passes
from tests.fake_clock import burn
from tests.planted import Work

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


def again(function: Any, x: torch.Tensor) -> Any:
    return checkpoint(
        function,
        x,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), bookkeeping()),
    )


class Block(nn.Module):
    """Has a part of itself computed again: a module, or a function."""

    def __init__(self, has_module: bool) -> None:
        super().__init__()
        self.part = Work(1, 2) if has_module else self.sin

    def sin(self, x: torch.Tensor) -> torch.Tensor:
        burn(7)
        return x.sin()

    def forward(self, x: torch.Tensor) -> Any:
        return again(self.part, x)


@pytest.mark.parametrize("steps", [1, 2])
def test_around_an_outermost_module(steps: int) -> None:
    net = nn.Sequential(Work(1, 2), Work(3, 4))
    with torchprof_hooks.profile() as prof:
        for _ in range(steps):
            again(net, X.clone().requires_grad_()).sum().backward()
    expected = {
        ("Sequential", "forward"): calls(*[4] * steps, own=0),
        ("Sequential", "backward"): calls(*[6] * steps, own=0),
        ("Sequential", "recompute"): calls(*[4] * steps, own=25 * steps),
        **passes(*[6] * steps),
    }
    for name, forward, backward in (("Sequential.0", 1, 2), ("Sequential.1", 3, 4)):
        expected[name, "forward"] = calls(*[forward] * steps)
        expected[name, "recompute"] = calls(*[forward] * steps)
        expected[name, "backward"] = calls(*[backward] * steps)
    assert found(prof.profile) == expected
    assert prof.profile.aborted_calls == 0


OF_BLOCK = {
    "a function": {("Block", "forward"): 7, ("Block", "recompute"): 25 + 7},
    "a module": {
        ("Block", "recompute"): 25,
        ("Block.part", "forward"): 1,
        ("Block.part", "backward"): 2,
        ("Block.part", "recompute"): 1,
    },
}


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("part", OF_BLOCK)
def test_around_a_part_of_a_module(part: str, functions: bool) -> None:
    with torchprof_hooks.profile(functions=functions) as prof:
        Block(part == "a module")(X.clone().requires_grad_()).sum().backward()
    assert own_ms(prof.profile) == OF_BLOCK[part]
