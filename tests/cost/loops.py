"""Loops of which all steps are measured, or some."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader

from tests.fake_clock import burn
from torchprof_hooks import Profile
from torchprof_hooks.hooks.measuring import Settings, make_steps
from torchprof_hooks.kernel.interception import interception
from torchprof_hooks.kernel.thread_steps import ThreadSteps
from torchprof_hooks.profiles.data import ProfileData


@contextmanager
def followed(functions: bool = False, **some: Any) -> Iterator[ThreadSteps]:
    """This thread, as a whole program is measured. some: `steps` and `every`."""
    steps = make_steps(Settings(functions=functions, **some))
    steps.start()
    try:
        yield steps
    finally:
        steps.stop()


#: The first of three steps is measured.
THIRDS: Final[dict[str, Any]] = {"steps": 1, "every": 3}


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


def calls(found: ProfileData, name: str, phase: str = "") -> int:
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
        "interceptor": interception.is_used,
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
        "garbage": len(gc.callbacks),
    }
