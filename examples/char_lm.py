"""Train a small language model on Python's standard library, and see what it costs.

The model reads the source code that comes with every Python, one character at a time,
and learns to write more of it. It takes about a minute on two CPU cores.
"""

import argparse
import sysconfig
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

import torchprof_hooks

INDENT = " " * 4
TEMPERATURE = 0.8


@dataclass(frozen=True)
class Config:
    context: int = 64
    width: int = 128
    heads: int = 4
    blocks: int = 4
    batch_size: int = 16
    steps: int = 900
    max_learning_rate: float = 2e-3
    report_every: int = 100
    eval_batches: int = 10
    seed: int = 0


class Vocabulary:
    """Numbers for characters: one each for the common, one together for the rare."""

    UNKNOWN = "\N{REPLACEMENT CHARACTER}"

    def __init__(self, text: str, min_count: int = 100) -> None:
        common = {char for char, n in Counter(text).items() if n >= min_count}
        self.chars = [self.UNKNOWN, *sorted(common - {self.UNKNOWN})]
        self.ids = torch.zeros(0x110000, dtype=torch.long)
        self.ids[[ord(char) for char in self.chars]] = torch.arange(len(self.chars))

    def __len__(self) -> int:
        return len(self.chars)

    def encode(self, text: str) -> Tensor:
        return self.ids[torch.frombuffer(bytearray(text, "utf-32-le"), dtype=torch.int)]

    def decode(self, ids: Tensor) -> str:
        return "".join(self.chars[i] for i in ids.tolist())


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.proj = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, head, position, feature)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.proj(y.transpose(1, 2).flatten(-2))
        return out


class MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.expand = nn.Linear(config.width, 4 * config.width)
        self.gelu = nn.GELU()
        self.proj = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.proj(self.gelu(self.expand(x)))
        return out


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class CharLM(nn.Module):
    """A decoder-only transformer that predicts the next character at each position."""

    def __init__(self, config: Config, vocabulary_size: int) -> None:
        super().__init__()
        self.context = config.context
        self.tokens = nn.Embedding(vocabulary_size, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.Sequential(*(Block(config) for _ in range(config.blocks)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, vocabulary_size)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[-1], device=ids.device)
        x = self.tokens(ids) + self.positions(positions)
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def read_corpus() -> str:
    """The top-level modules of the standard library, a few megabytes of text."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(folder.glob("*.py"))
    text = "\n".join(f.read_text(encoding="utf-8", errors="replace") for f in files)
    return text.replace(INDENT, "\t")  # one character per level is easier to learn


def random_batch(ids: Tensor, config: Config) -> tuple[Tensor, Tensor]:
    """Random excerpts, and as targets the same excerpts one character further on."""
    last = len(ids) - config.context
    starts = torch.randint(last, (config.batch_size, 1), device=ids.device)
    excerpts = ids[starts + torch.arange(config.context + 1, device=ids.device)]
    return excerpts[:, :-1], excerpts[:, 1:]


def batch_loss(model: CharLM, ids: Tensor, config: Config) -> Tensor:
    inputs, targets = random_batch(ids, config)
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: CharLM, ids: Tensor, config: Config) -> float:
    model.eval()
    losses = [batch_loss(model, ids, config) for _ in range(config.eval_batches)]
    model.train()
    return torch.stack(losses).mean().item()


def train(model: CharLM, train_ids: Tensor, val_ids: Tensor, config: Config) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, config.max_learning_rate, config.steps, pct_start=0.12
    )
    losses: list[Tensor] = []
    # With disable=None there is no bar where stderr is not a terminal.
    for step in tqdm(range(1, config.steps + 1), desc="training", disable=None):
        loss = batch_loss(model, train_ids, config)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.detach())
        if step % config.report_every == 0 or step == config.steps:
            train_loss = torch.stack(losses).mean().item()
            val_loss = evaluate(model, val_ids, config)
            tqdm.write(f"step {step:4}  loss {train_loss:.2f}  val {val_loss:.2f}")
            losses.clear()


@torch.no_grad()
def generate(model: CharLM, vocabulary: Vocabulary, prompt: str, length: int) -> str:
    model.eval()
    ids = vocabulary.encode(prompt).to(model.head.weight.device)
    for _ in range(length):
        logits = model(ids[None, -model.context :])[0, -1]
        next_id = torch.multinomial((logits / TEMPERATURE).softmax(-1), 1)
        ids = torch.cat([ids, next_id])
    return vocabulary.decode(ids).replace("\t", INDENT)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--steps", type=int, default=Config.steps, help="default: %(default)s"
    )
    parser.add_argument(
        "--length", type=int, default=400, help="of what it writes (default: 400)"
    )
    parser.add_argument("--functions", action="store_true", help="measure these too")
    parser.add_argument("--memory", action="store_true", help="measure that too")
    parser.add_argument("--full", action="store_true", help="print all tables, too")
    parser.add_argument("--compile", action="store_true", help="compile the model")
    parser.add_argument("--save", help="write the profile to this file, too")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    config = Config(steps=args.steps)
    torch.manual_seed(config.seed)
    device = torch.accelerator.current_accelerator(True) or torch.device("cpu")

    text = read_corpus()
    vocabulary = Vocabulary(text)
    ids = vocabulary.encode(text).to(device)
    train_ids, val_ids = ids.tensor_split([len(ids) * 9 // 10])
    model = CharLM(config, len(vocabulary)).to(device)
    if args.compile:
        model.compile()
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{len(text):,} characters, {parameters:,} parameters, on {device}")

    with torchprof_hooks.profile(functions=args.functions, memory=args.memory) as prof:
        train(model, train_ids, val_ids, config)

    print()
    prof.print_report(full=args.full)
    if args.save:
        prof.profile.save(args.save)

    sample = generate(model, vocabulary, "def ", args.length)
    print(f"\nWhat it writes now:\n\n{sample}")


if __name__ == "__main__":
    main()
