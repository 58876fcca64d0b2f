"""Floating-point operations of modules: forward, backward and recompute, by hand and by
torch's own counter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import torchprof_hooks
from tests.cores import NATIVE_CORE
from torchprof_hooks import Profile
from torchprof_hooks.profiles.names import GROUPINGS, Phase
from torchprof_hooks.profiles.rows import Row

pytestmark = NATIVE_CORE

PHASES: tuple[Phase, ...] = ("forward", "backward", "recompute")


def trained(model: nn.Module, *inputs: torch.Tensor) -> Profile:
    """The profile of one training step."""
    with torchprof_hooks.profile(functions=True) as prof:
        model(*inputs).sum().backward()
    return prof.profile


def row_of(profile: Profile, name: str) -> Row:
    (found,) = [row for row in profile.rows() if row.name == name]
    return found


def cumulative(row: Row) -> tuple[int, ...]:
    return tuple(row.phases[phase].flops_cumulative for phase in PHASES)


def own(row: Row) -> tuple[int, ...]:
    return tuple(row.phases[phase].flops for phase in PHASES)


class Attention(nn.Module):
    """Of 4 heads, 8 wide, of queries, keys and values that are made of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, 4, 8)).permute(2, 0, 3, 1, 4).unbind()
        return F.scaled_dot_product_attention(q, k, v)


class Experts(nn.Module):
    """A Mixture of Experts: each row goes to one of two, three in four to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 2)
        self.experts = nn.ModuleList([nn.Linear(16, 32), nn.Linear(16, 32)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.router(x).softmax(1)
        chosen = torch.arange(len(x), device=x.device) % 4 == 3
        parts = [
            expert(x[chosen == number]) * weights[chosen == number, number, None]
            for number, expert in enumerate(self.experts)
        ]
        return torch.cat(parts)


def products(m: int, k: int, n: int) -> int:
    return 2 * m * k * n


QKV = products(2 * 5, 32, 96)
SCORES = 2 * 4 * products(5, 8, 5)


def test_of_attention() -> None:
    profile = trained(Attention(), torch.randn(2, 5, 32, requires_grad=True))

    attention = row_of(profile, "Attention")
    assert cumulative(attention) == (QKV + 2 * SCORES, 2 * QKV + 4 * SCORES, 0)
    # Its own are those of the functions that it calls itself.
    assert own(attention) == (2 * SCORES, 4 * SCORES, 0)
    assert own(row_of(profile, "Attention.qkv")) == (QKV, 2 * QKV, 0)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # The last product of a checkpoint is not computed again.
        self.inner = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 4))
        self.outer = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.outer(checkpoint(self.inner, x, use_reentrant=False))
        return out


def test_what_is_recomputed_is_told_apart() -> None:
    profile = trained(Checkpointed(), torch.randn(6, 16, requires_grad=True))
    first, last, outer = products(6, 16, 32), products(6, 32, 4), products(6, 4, 8)

    assert cumulative(row_of(profile, "Checkpointed.inner")) == (
        first + last,
        2 * (first + last),
        first,
    )
    assert cumulative(row_of(profile, "Checkpointed")) == (
        first + last + outer,
        2 * (first + last + outer),
        first,
    )
    assert own(row_of(profile, "Checkpointed")) == (0, 0, 0)


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (
            lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 2, 1)),
            (2, 3, 8, 8),
        ),
        pytest.param(  # the other core does not know what its attention comes down to
            lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
            (2, 5, 16),
            marks=NATIVE_CORE,
        ),
        (Experts, (8, 16)),
    ],
    ids=["convolutions", "transformer", "Mixture of Experts"],
)
def test_the_run_has_what_torchs_counter_has(make: Any, size: Any) -> None:
    model = make()
    profile = trained(model, torch.randn(size))
    with FlopCounterMode(display=False) as counter:
        model(torch.randn(size)).sum().backward()

    # Backward of modules is not told there; the whole run has it.
    total = counter.get_total_flops()
    assert row_of(profile, type(model).__name__).flops_cumulative == total
    assert profile.tree().flops_cumulative == total
    for by in GROUPINGS:
        assert sum(row.flops for row in profile.rows(by)) == total
