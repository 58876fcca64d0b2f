"""Ten small programs of different kinds, each run alone: ``whole_programs.py NAME``.

They know nothing of the package. Each does one or two seconds of work on one core,
importing torch left out: in longer ones, what the command adds would be lost in how
much runs of one program differ.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from models import Block
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

WIDTH: Final = 128


def _train(
    model: nn.Module,
    steps: int,
    batch: Callable[[], Tensor],
    *,
    batches_per_step: int = 1,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(batches_per_step):
            torch.autograd.backward(model(batch()).square().mean())
        optimizer.step()


def _mlp() -> nn.Module:
    layers = (nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
    return nn.Sequential(*layers, nn.Linear(256, 10))


def _transformer(blocks: int = 4) -> nn.Module:
    return nn.Sequential(*(Block(WIDTH, 4) for _ in range(blocks)))


def mlp() -> None:
    _train(_mlp(), 500, lambda: torch.randn(64, 256))


def convolutions() -> None:
    layers: list[nn.Module] = []
    for inputs in (3, 16, 16, 16):
        layers += [nn.Conv2d(inputs, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    _train(nn.Sequential(*layers), 50, lambda: torch.randn(8, 3, 32, 32))


def gpt2() -> None:
    _train(_transformer(), 40, lambda: torch.randn(4, 64, WIDTH))


def reinforcement() -> None:
    """A hundred calls of a tiny policy in a step."""
    policy = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(policy.parameters(), 0.01)
    for _ in range(20):
        chances = []
        state = torch.randn(1, 4)
        for _ in range(100):
            chance = F.log_softmax(policy(state), -1)
            action = int(torch.multinomial(chance.detach().exp(), 1))
            state = torch.roll(state, 1, -1) * (0.9 + 0.1 * action)
            chances.append(chance[0, action])
        optimizer.zero_grad()
        torch.stack(chances).sum().backward()
        optimizer.step()


def accumulation() -> None:
    _train(_mlp(), 13, lambda: torch.randn(64, 256), batches_per_step=40)


def compiled() -> None:
    model: Any = torch.compile(_mlp())
    _train(model, 400, lambda: torch.randn(64, 256))


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(WIDTH, 4) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            found: Any = checkpoint(block, x, use_reentrant=False)
            x = found
        return x


def checkpointed() -> None:
    _train(_Checkpointed(), 30, lambda: torch.randn(4, 64, WIDTH))


class _Pictures(Dataset[Tensor]):
    def __len__(self) -> int:
        return 64 * 150

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((256,), index / 1000)


def workers() -> None:
    loader = DataLoader(_Pictures(), batch_size=64, num_workers=2)
    batches = iter(loader)
    _train(_mlp(), len(loader), lambda: next(batches))


def evaluation() -> None:
    model = _transformer().eval()
    with torch.no_grad():
        for _ in range(130):
            model(torch.randn(4, 64, WIDTH))


def many_modules() -> None:
    layers = (nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(100))
    _train(nn.Sequential(*layers), 80, lambda: torch.randn(4, 8))


#: By what they are called in the table.
PROGRAMS: Final[dict[str, Callable[[], None]]] = {
    "MLP": mlp,
    "convolutions": convolutions,
    "small GPT-2": gpt2,
    "reinforcement learning, 100 calls a step": reinforcement,
    "gradients of 40 batches accumulated": accumulation,
    "compiled": compiled,
    "checkpointed": checkpointed,
    "DataLoader with 2 workers": workers,
    "evaluation only": evaluation,
    "301 small modules": many_modules,
}


if __name__ == "__main__":
    # A full collection takes 80 ms: that it falls into one run or not is chance.
    gc.disable()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    PROGRAMS[sys.argv[1]]()
