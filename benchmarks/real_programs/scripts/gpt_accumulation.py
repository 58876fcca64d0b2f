"""A GPT that accumulates the gradients of 40 micro-batches for each of its steps,
evaluated now and then, when it also generates."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

STEPS, MICRO_BATCHES = 6, 40
WIDTH, HEADS, LAYERS, LENGTH = 128, 4, 4, 64

torch.manual_seed(0)
text = Path(os.__file__).read_text() + Path(torch.__file__).read_text()
letters = {letter: index for index, letter in enumerate(sorted(set(text)))}
data = torch.tensor([letters[letter] for letter in text])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, HEADS, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.after(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(letters), WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, len(letters))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        logits: torch.Tensor = self.head(self.blocks(x))
        return logits


def loss_of(model: nn.Module) -> torch.Tensor:
    starts = torch.randint(len(data) - LENGTH - 1, (4,))
    ids = torch.stack([data[start : start + LENGTH + 1] for start in starts])
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(STEPS):
    optimizer.zero_grad()
    for _ in range(MICRO_BATCHES):
        (loss_of(model) / MICRO_BATCHES).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 2:
        with torch.no_grad():
            print(step, repr(loss_of(model).item()))
            ids = torch.zeros(1, 1, dtype=torch.long)
            for _ in range(40):
                ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
            print(ids.tolist())
