"""Generates text with a small decoder that keeps keys and values, and prints where the
time went, the prompt (prefill) apart from the tokens after it (decode).

    python examples/generate.py
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import torchprof_hooks

Cache = tuple[torch.Tensor, torch.Tensor]


class Attention(nn.Module):
    """Self-attention of the new tokens over all tokens so far."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: torch.Tensor, cache: Cache | None
    ) -> tuple[torch.Tensor, Cache]:
        batch, new, width = x.shape
        shape = batch, new, 3, self.heads, width // self.heads
        query, key, value = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        if cache is not None:
            key = torch.cat((cache[0], key), dim=2)
            value = torch.cat((cache[1], value), dim=2)
        found = F.scaled_dot_product_attention(
            query, key, value, is_causal=cache is None
        )
        found = found.transpose(1, 2).reshape(batch, new, width)
        return self.out(found), (key, value)


class Block(nn.Module):
    """Attention, and a network for each token."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(
        self, x: torch.Tensor, cache: Cache | None
    ) -> tuple[torch.Tensor, Cache]:
        found, cache = self.attention(self.norm1(x), cache)
        x = x + found
        return x + self.mlp(self.norm2(x)), cache


class Decoder(nn.Module):
    """Gives the logits of the next token, and what the blocks keep."""

    def __init__(
        self, tokens: int = 4096, width: int = 256, heads: int = 8, depth: int = 4
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, tokens)

    def forward(
        self, tokens: torch.Tensor, caches: list[Cache] | None = None
    ) -> tuple[torch.Tensor, list[Cache]]:
        x, kept = self.embedding(tokens), []
        for number, block in enumerate(self.blocks):
            x, cache = block(x, None if caches is None else caches[number])
            kept.append(cache)
        return self.head(x[:, -1]), kept


@torch.inference_mode()
def generate(model: Decoder, prompt: torch.Tensor, new: int) -> torch.Tensor:
    """The prompt with `new` tokens after it, each the likeliest one."""
    with torchprof_hooks.region("prefill"):
        logits, caches = model(prompt)
    tokens = [prompt, logits.argmax(-1, keepdim=True)]
    with torchprof_hooks.region("decode"):
        for _ in range(new - 1):
            logits, caches = model(tokens[-1], caches)
            tokens.append(logits.argmax(-1, keepdim=True))
    return torch.cat(tokens, dim=1)


def main() -> None:
    torch.manual_seed(0)
    model = Decoder().eval()
    prompts = [torch.randint(4096, (2, length)) for length in (64, 200, 128, 256)]
    generate(model, prompts[0], new=2)  # what is done for the first time
    with torchprof_hooks.profile(functions=True) as prof:
        for prompt in prompts:
            generate(model, prompt, new=48)
    prof.print_report()


if __name__ == "__main__":
    main()
