"""Attribution on models that nobody thought of: random graphs of random modules."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.planted import Work, check

pytestmark = pytest.mark.usefixtures("clock")


class RandomGraph(nn.Module):
    """Calls its children in random ways: on any earlier value, several times, inside
    checkpoints, without gradients, with glue between them and values left unused."""

    def __init__(self, rng: random.Random, depth: int) -> None:
        super().__init__()
        self.seed = rng.random()
        self.parts = nn.ModuleList(
            RandomGraph(rng, depth - 1)
            if depth and rng.random() < 0.4
            else Work(rng.choice([3, 4, 6]), rng.choice([8, 12, 18]))
            for _ in range(rng.randint(1, 3))
        )
        if rng.random() < 0.3:
            self.parts.append(self.parts[0])  # shared

    def forward(self, x: torch.Tensor) -> Any:
        rng = random.Random(self.seed)
        values = [x]
        for part in self.parts:
            inputs = rng.choice(values)
            way = rng.random()
            if way < 0.15:
                with torch.no_grad():
                    result = part(inputs)
            elif way < 0.35:
                result = checkpoint(part, inputs, use_reentrant=way < 0.25)
            elif way < 0.5:
                result = part(part(inputs))
            else:
                result = part(inputs) * 0.5
            if way > 0.9:
                result = result.relu_()
            values.append(result)
        if rng.random() < 0.3:
            return values[-1]  # the others are not used
        return torch.stack(values).sum(0)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_random_graph(seed: int, functions: bool) -> None:
    model = RandomGraph(random.Random(seed), depth=2)

    def step() -> None:
        x = torch.ones(3, requires_grad=seed % 2 == 0)
        y = model(x).sum()
        if y.requires_grad:
            y.backward()

    check(step, model, functions=functions)
