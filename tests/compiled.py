"""Models whose kernels take a known time, on a clock of the test's, also where
Inductor compiles them: no C++ has to be compiled for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.fake_clock import MS, burn
from torchprof_hooks import Profile
from torchprof_hooks.kernel.torch_names.tried import minor
from torchprof_hooks.profiles.names import MODULE_PHASES

#: Before torch 2.10, Inductor does not say whose kernels are.
IS_DIVIDED = minor(torch.__version__) not in ("2.8", "2.9")
DIVIDED = pytest.mark.skipif(not IS_DIVIDED, reason="compiled code is one line")

#: How long forward of each `ms` has taken so far, in ms.
spent: Counter[float] = Counter()
#: What is called in forward of each `ms`, and by `-ms` in its gradient.
during: dict[float, list[Callable[[], object]]] = {}


@torch.library.custom_op("torchprof_hooks_tests::work", mutates_args=())
def work(x: torch.Tensor, ms: float) -> torch.Tensor:
    """Takes `ms`, and its gradient twice that."""
    burn(ms)
    spent[ms] += ms  # type: ignore[assignment]
    for call in during.get(ms, ()):
        call()
    return x.clone()


@work.register_fake
def _(x: torch.Tensor, ms: float) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("torchprof_hooks_tests::gradient", mutates_args=())
def gradient(grad: torch.Tensor, x: torch.Tensor, ms: float) -> torch.Tensor:
    burn(2 * ms)
    for call in during.get(-ms, ()):
        call()
    return grad.clone()


@gradient.register_fake
def _(grad: torch.Tensor, x: torch.Tensor, ms: float) -> torch.Tensor:
    return torch.empty_like(grad)


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.ms = inputs[1]


def _backward(ctx: Any, grad: torch.Tensor) -> Any:
    return gradient(grad, *ctx.saved_tensors, ctx.ms), None


work.register_autograd(_backward, setup_context=_setup_context)


class Work(nn.Module):
    """Takes its time, in one kernel."""

    def __init__(self, ms: float) -> None:
        super().__init__()
        self.ms = ms

    def forward(self, x: torch.Tensor) -> Any:
        return work(x, self.ms)


class Block(nn.Module):
    """Two of these, and a kernel of its own between."""

    def __init__(self, ms: float) -> None:
        super().__init__()
        self.up, self.down = Work(ms), Work(10 * ms)

    def forward(self, x: torch.Tensor) -> Any:
        return self.down(work(self.up(x), 0.5))


class Net(nn.Module):
    """Blocks, called one after the other; the second block is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(1), Block(3)])
        self.head = Work(2)

    def forward(self, x: torch.Tensor) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def rows_of(found: Profile) -> dict[str, Any]:
    """Calls and own times in ms of each module, by phase; all add up to the whole."""
    assert sum(row.self_ns for row in found.rows()) == found.wall_ns
    return {
        row.name: tuple(
            number
            for phase in MODULE_PHASES
            for totals in [row.phases[phase]]
            for number in (totals.calls, totals.self_ns / MS)
        )
        for row in found.rows()
        if row.kind == "module"
    }
