"""What torch does around the modules that a checkpoint calls again is backward of the
module whose tensors were asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchprof_hooks
from tests.exact import own_ms
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


OF_BLOCK = {
    "a function": {("Block", "forward"): 7, ("Block", "backward"): 25 + 7},
    "a module": {
        ("Block.part", "forward"): 1,
        ("Block.part", "backward"): 2 + 25,
        ("Block.part", "recompute"): 1,
    },
}


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("part", OF_BLOCK)
def test_around_a_part_of_a_module(part: str, functions: bool) -> None:
    with torchprof_hooks.profile(functions=functions) as prof:
        Block(part == "a module")(X.clone().requires_grad_()).sum().backward()
    assert own_ms(prof.profile) == OF_BLOCK[part]
    assert prof.profile.aborted_calls == 0
