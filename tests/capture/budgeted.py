"""Loops of which some steps are measured, by a budget that says beforehand which."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader

from tests.fake_clock import burn
from torchprof_hooks import Profile
from torchprof_hooks.capture.sampling.step_budget import Run, StepBudget
from torchprof_hooks.profiler import Profiler


class Fixed(StepBudget):
    """Gives these runs, again and again, after the first two steps: the warm-up, and
    one that is measured."""

    def __init__(self, *runs: Run) -> None:
        super().__init__(0.5)
        self.ended: list[Run] = []
        self.times_ns: list[tuple[int, int]] = []  # of these runs, and aside
        self._runs = runs

    def next(
        self,
        ended: Run,
        duration_ns: int,
        spans: int,
        aside_ns: int,
        is_training: bool | None = True,
    ) -> Run:
        assert (spans > 0) or not ended.is_measured
        self.ended.append(ended)
        self.times_ns.append((duration_ns, aside_ns))
        return self._runs[(len(self.ended) - 1) % len(self._runs)]


def measured(steps: int = 1) -> Run:
    return Run(is_measured=True, steps=steps)


def bare(steps: int = 1) -> Run:
    return Run(is_measured=False, steps=steps)


#: Every third step is measured, from the second one on.
THIRDS = (bare(2), measured())

Limited = Callable[..., Profiler]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(torch.relu(self.first(x)))
        return y


X = torch.ones(2, 4)

#: What each step takes, in the loops below.
STEP_MS = 8


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def train(
    model: nn.Module, steps: int, in_step: Callable[[], object] = lambda: None
) -> None:
    optimizer = sgd(model)
    for _ in range(steps):
        optimizer.zero_grad()
        model(X).sum().backward()
        burn(STEP_MS)
        in_step()
        optimizer.step()


def infer(model: nn.Module, calls: int) -> None:
    with torch.no_grad():
        for _ in range(calls):
            burn(STEP_MS)
            model(X)


def calls(found: Profile, name: str, phase: str = "") -> int:
    for row in found.rows():
        if row.name == name:
            phases: dict[Any, Any] = dict(row.phases)
            return phases[phase].calls if phase else row.calls
    return 0


def check_sums(found: Profile) -> None:
    assert sum(totals.self_ns for totals in found.cells.values()) == found.wall_ns
    assert all(totals.self_ns >= 0 for totals in found.cells.values())


def registered(model: nn.Module) -> dict[str, object]:
    """What may be changed while steps are measured."""
    return {
        "modules": len(torch_module._global_forward_pre_hooks)
        + len(torch_module._global_forward_hooks)
        + len(torch_module._global_forward_hooks_always_called),
        "these modules": {
            name: len(module._forward_pre_hooks) + len(module._forward_hooks)
            for name, module in model.named_modules()
            if module._forward_pre_hooks or module._forward_hooks
        },
        "optimizers": len(torch_optimizer._global_optimizer_pre_hooks)
        + len(torch_optimizer._global_optimizer_post_hooks),
        "backward": torch.autograd._engine_run_backward,  # type: ignore[attr-defined]
        "modes": torch._C._len_torch_function_stack(),
        "overrides": torch.overrides.has_torch_function,
        "apply": vars(torch.autograd.function._SingleLevelFunction).get("apply"),
        "loaders": vars(DataLoader)["__iter__"],
    }
