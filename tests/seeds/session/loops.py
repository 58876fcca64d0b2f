"""Loops that `ProfilerHook` traces, here and in programs of their own: so this imports
nothing that only tests need."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules import module as module_tables

from torchprof_hooks import ProfilerHook, TrainingSession


class Loop:
    """Steps of a small model, and what each of them returned."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1, momentum=0.9)
        self.x = torch.randn(3, 4)

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(self.x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def run_session(hook: ProfilerHook, loop: Loop, runs: int, start_step: int = 0) -> None:
    with TrainingSession([hook], start_step) as session:
        for _ in range(runs):
            session.run(loop.step)


def run_loop(hook: ProfilerHook, loop: Loop, *steps: int | None) -> None:
    """Steps of these numbers; None is the next one."""
    with hook:
        for step in steps:
            loop.step()
            hook.step(step)


def nothing_is_registered() -> bool:
    tables = [
        module_tables._global_forward_hooks,
        module_tables._global_forward_pre_hooks,
        module_tables._global_backward_hooks,
    ]
    return not any(tables) and not torch.autograd.profiler._is_profiler_enabled
