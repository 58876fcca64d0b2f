"""How often `compare` is wrong, and what it finds: runs of unchanged code, and of the
same with 10 % more time in the forward of one module, in turns."""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

import torchprof_hooks
from torchprof_hooks import Profile, compare

PAIRS = 7
STEPS = 40
PLANTED = "Net.blocks.2.up"


class Layer(nn.Linear):
    """A linear layer that takes longer by a share of its time."""

    longer = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begin = time.perf_counter_ns()
        found = super().forward(x)
        end = time.perf_counter_ns()
        end += round((end - begin) * self.longer)
        while time.perf_counter_ns() < end:
            pass
        return found


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gelu, self.down = Layer(128, 512), nn.GELU(), Layer(512, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.down(self.gelu(self.up(x)))
        return found


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.blocks(x))
        return found


def run(path: Path, longer: float) -> None:
    """Train in a process of its own, and save the profile. longer: of `PLANTED`."""
    if child := os.fork():
        _, status = os.waitpid(child, 0)
        if status:
            raise SystemExit(f"a run ended with status {status}")
        return
    torch.manual_seed(0)
    net = Net()
    planted = net.get_submodule(PLANTED.removeprefix("Net."))
    planted.longer = longer  # type: ignore[assignment]
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    with torchprof_hooks.profile() as prof:
        for _ in range(STEPS):
            net(torch.randn(64, 128)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    prof.profile.save(path)
    os._exit(0)


def measured(rounds: int, longer: float) -> tuple[list[Profile], ...]:
    """Runs of unchanged code twice, and of the planted, in turns."""
    sides: tuple[list[Profile], ...] = ([], [], [])
    with TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        run(path, 0.0)  # does not count
        for number in range(rounds):
            order = (0, 1, 2) if number % 2 else (2, 1, 0)
            for side in order:
                run(path, longer if side == 2 else 0.0)
                sides[side].append(Profile.load(path))
    return sides


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--alarms", type=int, default=200, help="unchanged comparisons")
    parser.add_argument("--tries", type=int, default=20, help="planted comparisons")
    options = parser.parse_args()
    torch.set_num_threads(1)
    same, again, planted = measured(options.rounds, 0.1)
    rng, alarms, found, others = random.Random(0), 0, 0, 0
    begins = range(options.rounds - PAIRS + 1)
    for _ in range(options.alarms):
        at = slice(begin := rng.choice(begins), begin + PAIRS)
        pairs = zip(same[at], again[at], strict=True)
        swapped = [pair[:: rng.choice((1, -1))] for pair in pairs]
        old, new = ([pair[side] for pair in swapped] for side in (0, 1))
        alarms += bool(compare(old, new).slower)
    for number in range(options.tries):
        begin = round(number * begins[-1] / max(options.tries - 1, 1))
        at = slice(begin, begin + PAIRS)
        slower = compare(same[at], planted[at]).slower
        names = {change.name for change in slower if change.phase == "forward"}
        found += PLANTED in names
        others += bool({change.name for change in slower} - around(PLANTED))
    print(
        json.dumps(
            {
                "unchanged": {"comparisons": options.alarms, "alarms": alarms},
                "planted_10_percent": {
                    "comparisons": options.tries,
                    "found": found,
                    "other_rows_too": others,
                },
            }
        )
    )


def around(name: str) -> set[str]:
    """A module, and those around it."""
    ends = [place for place, sign in enumerate(name) if sign == "."]
    return {name, *(name[:end] for end in ends), "(step)"}


if __name__ == "__main__":
    main()
