"""What measuring a decoding loop costs, in which each token brings new shapes.

Aims: with functions at most 1.25 of the processor time without; and the module that
takes most is the one that takes most without.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from time import process_time_ns
from typing import Any

import results
import torch
import torch.nn.functional as F
from bench import rounds
from torch import Tensor, nn

from torchprof_hooks import Profile, profile

TOKENS, ROUNDS = 256, rounds(5)
WIDTH, HEADS, LAYERS, VOCABULARY = 512, 4, 4, 1000

Cache = tuple[Tensor, Tensor]


class SelfAttention(nn.Module):
    """Of the newest tokens to all before them, of which it is given keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, before: Cache | None) -> tuple[Tensor, Cache]:
        """What it adds, and the keys and values with those of `x`."""
        heads = self.inputs(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        if before is not None:
            key = torch.cat([before[0], key], 2)
            value = torch.cat([before[1], value], 2)
        found = F.scaled_dot_product_attention(query, key, value)
        return self.output(found.transpose(1, 2).flatten(2)), (key, value)


class Block(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = SelfAttention()
        self.mlp1, self.mlp2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, before: Cache | None) -> tuple[Tensor, Cache]:
        """The outputs, and the keys and values."""
        found, known = self.attention(self.norm1(x), before)
        x = x + found
        return x + self.mlp2(F.gelu(self.mlp1(self.norm2(x)))), known


class Decoder(nn.Module):
    """A small language model, without positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, token: Tensor, before: list[Any]) -> tuple[Tensor, list[Cache]]:
        """The logits, and the keys and values of each layer."""
        x, known = self.embedding(token), []
        for block, cache in zip(self.blocks, before, strict=True):
            x, added = block(x, cache)
            known.append(added)
        return self.head(x), known


@torch.no_grad()
def generate(model: Decoder) -> None:
    """The tokens after one."""
    token, known = torch.zeros(1, 1, dtype=torch.long), [None] * LAYERS
    for _ in range(TOKENS):
        logits, known = model(token, known)
        token = logits.argmax(-1)


def hottest(found: Profile) -> str:
    """The module that takes most by itself."""
    rows = [row for row in found.rows("module") if row.kind == "module"]
    return max(rows, key=lambda row: row.self_ns).name


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Decoder().eval()
    ways: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "bare": nullcontext,
        "profile()": profile,
        "profile(functions=True)": lambda: profile(functions=True),
    }
    times: dict[str, list[int]] = {name: [] for name in ways}
    hot: dict[str, list[str]] = {name: [] for name in ways}
    generate(model)
    for _ in range(ROUNDS):
        for name, enter in ways.items():
            with enter() as measured:
                start_ns = process_time_ns()
                generate(model)
                times[name].append(process_time_ns() - start_ns)
            if measured is not None:
                hot[name].append(hottest(measured.profile))
    bare = median(times["bare"])
    rows = [
        (
            name,
            f"{median(found) / TOKENS / 1e3:.0f}",
            f"{median(found) / bare:.2f}",
            max(set(hot[name]), key=hot[name].count) if hot[name] else "",
        )
        for name, found in times.items()
    ]
    table = results.Table(
        f"Decoding {TOKENS} tokens: processor time",
        ["", "us a token", "of bare", "module that takes most"],
        rows,
    )
    figures = {name: median(found) / bare for name, found in times.items()}
    results.save("decoding", [table], figures)


if __name__ == "__main__":
    main()
