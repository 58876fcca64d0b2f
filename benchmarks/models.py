"""Models for the benchmarks, built from configurations: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Causal self-attention as in GPT-2."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.resid_dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        return cast("Tensor", self.resid_dropout(self.c_proj(mixed)))


class FeedForward(nn.Module):
    """The two linear layers of a block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.c_proj = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.dropout(self.c_proj(self.act(self.c_fc(x)))))


class Block(nn.Module):
    """A pre-norm transformer block: 12 modules with itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return cast("Tensor", x + self.mlp(self.ln_2(x)))


class GPT2(nn.Module):
    """GPT-2 in small: by default 6 layers of width 64."""

    def __init__(self, width: int = 64, layers: int = 6, heads: int = 4) -> None:
        super().__init__()
        self.wte = nn.Embedding(256, width)
        self.wpe = nn.Embedding(64, width)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.drop(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        return cast("Tensor", self.lm_head(self.ln_f(x)))


def called_modules(model: nn.Module) -> int:
    """How many modules a forward calls."""
    return sum(not isinstance(module, nn.ModuleList) for module in model.modules())


def gpt2_step() -> tuple[Callable[[], None], int]:
    """A training step of the small GPT-2, and its number of modules."""
    model = GPT2()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens, targets = torch.randint(0, 256, (2, 4, 32))

    def step() -> None:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, called_modules(model)


def chain_step(make: Callable[[], nn.Module], count: int = 100) -> Callable[[], None]:
    """Forward and backward of a chain of small modules."""
    model = nn.Sequential(*(make() for _ in range(count)))
    x = torch.randn(4, 8, requires_grad=True)
    return lambda: model(x).sum().backward()
