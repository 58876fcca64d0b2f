"""Loops of which some steps are measured, by a budget that says beforehand which."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader

from tests.fake_clock import burn
from torchprof_hooks import Profile
from torchprof_hooks.capture.attach.module_hooks import _seam_in_calls
from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.sampling.levels import Ended, Level, Run
from torchprof_hooks.capture.sampling.sampled_steps import SampledSteps
from torchprof_hooks.capture.sampling.scheduler import Scheduler
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.hooks.measuring import Settings, make_tracker
from torchprof_hooks.profiler import Profiler
from torchprof_hooks.profiles.data import ProfileData


class Fixed(Scheduler):
    """Gives these runs, again and again, after the first two steps: the warm-up, and
    one that is looked at on the highest level.

    ended: what came of them.
    """

    def __init__(self, *runs: Run, levels: Sequence[Level]) -> None:
        super().__init__(0.5, levels)
        self.ended: list[Ended] = []
        self._runs = runs

    def next(self, ended: Ended, least: Level) -> Run:
        assert ended.spans > 0 or ended.run.level == Level.STEPS
        self.ended.append(ended)
        level, steps = self._runs[(len(self.ended) - 1) % len(self._runs)]
        there = [least, *(other for other in self.levels if other > least)]
        return Run(min(other for other in there if other >= level), steps)


class Taking(Fixed):
    """Gives these levels, again and again, from the first step after the warm-up on."""

    def __init__(self, *levels: Level) -> None:
        super().__init__(*map(Run, (*levels[1:], levels[0])), levels=tuple(Level))
        self._first = levels[0]

    def begin(self, warm_up: Ended) -> Run:
        return Run(self._first)


def sampled(*levels: Level) -> AbstractContextManager[SampledSteps]:
    """A program that is measured on these levels, again and again."""
    return sampled_by(Taking(*levels))


@contextmanager
def sampled_by(scheduler: Scheduler) -> Iterator[SampledSteps]:
    """A program that is measured on the levels that the scheduler says."""

    def make(level: Level, names: ModuleNames) -> tuple[Tracker, str]:
        return make_tracker(Settings(functions=level == Level.FUNCTIONS), names)

    sampler = SampledSteps(make, scheduler)
    sampler.start()
    try:
        yield sampler
    finally:
        sampler.stop()


def measured(steps: int = 1) -> Run:
    return Run(Level.MODULES, steps)


def bare(steps: int = 1) -> Run:
    return Run(Level.STEPS, steps)


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


def calls(found: ProfileData, name: str, phase: str = "") -> int:
    for row in found.rows():
        if row.name == name:
            phases: dict[Any, Any] = dict(row.phases)
            return phases[phase].calls if phase else row.calls
    return 0


def check_sums(found: Profile) -> None:
    assert sum(totals.self_ns for totals in found.cells.values()) == found.wall_ns
    assert all(totals.self_ns >= 0 for totals in found.cells.values())


def shows_insides() -> bool:
    """Whether calls inside of others are shown to somebody here."""
    shown = [user.cursor for user in _seam_in_calls().users]
    return any(cursor and not cursor.sees_outer_alone for cursor in shown)


def registered(model: nn.Module) -> dict[str, object]:
    """What may be changed while steps are measured."""
    return {
        "modules": len(torch_module._global_forward_pre_hooks)
        + len(torch_module._global_forward_hooks)
        + len(torch_module._global_forward_hooks_always_called)
        + 3 * shows_insides(),
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
