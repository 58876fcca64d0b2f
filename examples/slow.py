"""Train a language model of characters that is slow in three places, which reports find
one after the other; each has an option that mends it.

    python -m torchprof_hooks examples/slow.py
    python -m torchprof_hooks examples/slow.py --encode-once
"""

import argparse

import torch
from char_lm import CharLM, Config, Vocabulary, read_corpus
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset


class Excerpts(Dataset[Tensor]):
    """Excerpts of a text, as numbers of characters.

    encodes_once: otherwise all of the text is encoded for each of them.
    """

    def __init__(
        self, text: str, vocabulary: Vocabulary, length: int, encodes_once: bool
    ) -> None:
        self.text, self.vocabulary, self.length = text, vocabulary, length
        self.ids = vocabulary.encode(text) if encodes_once else None

    def __len__(self) -> int:
        return len(self.text) // self.length

    def __getitem__(self, index: int) -> Tensor:
        ids = self.vocabulary.encode(self.text) if self.ids is None else self.ids
        return ids[index * self.length :][: self.length]


class PositionNorm(nn.Module):
    """A `LayerNorm`, written as one thinks of it: position after position."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        found = []
        for position in x.unbind(1):
            mean = position.mean(-1, keepdim=True)
            variance = position.var(-1, keepdim=True, correction=0)
            found.append((position - mean) / (variance + 1e-5).sqrt())
        return torch.stack(found, 1) * self.weight + self.bias


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60, help="default: 60")
    parser.add_argument(
        "--encode-once", action="store_true", help="and not for each excerpt"
    )
    parser.add_argument(
        "--layer-norm", action="store_true", help="torch's in place of our own"
    )
    parser.add_argument(
        "--fused", action="store_true", help="AdamW takes all tensors together"
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(0)
    config = Config(batch_size=8)
    text = read_corpus()[:2_000_000]
    vocabulary = Vocabulary(text)
    model = CharLM(config, len(vocabulary))
    if not args.layer_norm:
        for block in model.blocks:
            block.norm1 = PositionNorm(config.width)
    optimizer = torch.optim.AdamW(model.parameters(), fused=args.fused)
    excerpts = Excerpts(text, vocabulary, config.context + 1, args.encode_once)
    loader = DataLoader(excerpts, config.batch_size, shuffle=True)
    for _, ids in zip(range(args.steps), loader, strict=False):
        logits = model(ids[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss: {loss:.2f}")


if __name__ == "__main__":
    main()
