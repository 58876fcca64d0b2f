"""Programs for `bench_budgets.py`: ``budget_programs.py NAME STEPS``.

Each trains a small model on one thread, with made-up data, and knows nothing of the
package. Those with other people's libraries are in `programs`. What they print is to be
the same with and without the package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

import models
import torch
import torch.nn.functional as F
from torch import nn

#: Calls of the policy before a step.
CALLS: Final = 100


def training(make: Callable[[], models.Workload]) -> Callable[[int], None]:
    """So many steps of one of the models."""

    def train(steps: int) -> None:
        workload = make()
        for _ in range(steps):
            workload.step()
        print_weights(workload.model)

    return train


def print_weights(model: nn.Module) -> None:
    """All of them in one number, to the last bit."""
    weights = (weight.double().sum().item() for weight in model.parameters())
    print(repr(sum(weights)))


def reinforcement(steps: int) -> None:
    """A small policy plays without gradients, and learns from that once in a step."""
    policy = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    for _ in range(steps):
        state, states, actions = torch.ones(8), [], []
        with torch.no_grad():
            for _ in range(CALLS):
                states.append(state)
                actions.append(policy(state).argmax())
                state = 0.9 * state + 0.1 * actions[-1]
        optimizer.zero_grad()
        scores = policy(torch.stack(states))
        torch.autograd.backward(F.cross_entropy(scores, torch.stack(actions)))
        optimizer.step()
    print_weights(policy)


PROGRAMS: Final[dict[str, Callable[[int], None]]] = {
    "gpt2": training(models.gpt2_small),
    "resnet": training(models.resnet),
    "lstm": training(models.lstm),
    "llama": training(models.llama),
    "linear": training(models.chain),
    "reinforcement": reinforcement,
}


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    PROGRAMS[sys.argv[1]](int(sys.argv[2]))
