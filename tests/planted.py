"""Modules whose forward and backward take a known time: the truth to compare with.

The time is that of a `FakeClock` (fixture ``clock``), so that what is booked is right
to the nanosecond, or wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torchprof_hooks
from tests.fake_clock import MS, burn
from torchprof_hooks.kernel.core import CORE
from torchprof_hooks.profiles.names import MODULE_PHASES, Phase


class Work(nn.Module):
    """Multiplies its input by a parameter (1.0), taking its time for it.

    `spent_ns` tells what forward, backward and recompute really took.
    """

    def __init__(self, forward_ms: float = 4.0, backward_ms: float = 6.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.forward_ms = forward_ms
        self.backward_ms = backward_ms
        self.spent_ns: defaultdict[Phase, int] = defaultdict(int)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Burning.apply(x, self.scale, self)
        return result


class _Burning(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, work: Work) -> Any:
        in_backward = torch._C._current_graph_task_id() != -1
        work.spent_ns["recompute" if in_backward else "forward"] += burn(
            work.forward_ms
        )
        ctx.save_for_backward(x, scale)
        ctx.work = work
        return x * scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, scale = ctx.saved_tensors
        return (*_BurningBackward.apply(grad, x, scale, ctx.work), None)


class _BurningBackward(torch.autograd.Function):
    """The backward as a function of its own, so that it can be differentiated again:
    then it takes as long once more."""

    @staticmethod
    def forward(ctx: Any, grad: Any, x: Any, scale: Any, work: Work) -> Any:
        work.spent_ns["backward"] += burn(work.backward_ms)
        ctx.save_for_backward(grad, x, scale)
        ctx.work = work
        return grad * scale, (grad * x).sum().reshape(scale.shape)

    @staticmethod
    def backward(ctx: Any, grad_x: Any, grad_scale: Any) -> Any:
        work: Work = ctx.work
        work.spent_ns["backward"] += burn(work.backward_ms)
        grad, x, scale = ctx.saved_tensors
        return (
            grad_x * scale + grad_scale * x,
            grad_scale * grad,
            (grad_x * grad).sum(),
            None,
        )


def measure(
    step: Callable[[], object], *roots: nn.Module, functions: bool = False
) -> torchprof_hooks.Profile:
    """The profile of one `step`, after one that is not measured."""
    step()
    for work in _works(roots).values():
        work.spent_ns.clear()
    with torchprof_hooks.profile(functions=functions) as prof:
        step()
    return prof.profile


def check(
    step: Callable[[], object], *roots: nn.Module, functions: bool = False
) -> torchprof_hooks.Profile:
    """Measure `step`, and compare each `Work` in `roots` with what it took, and if they
    are measured, the custom Functions with all of these together."""
    profile = measure(step, *roots, functions=functions)
    wrong = differences(profile, *roots)
    if functions and CORE.name == "native":  # the other measures none
        wrong |= function_differences(profile, *roots)
    assert not wrong
    for by in ("module", "class", "function", "call"):
        assert sum(row.self_ns for row in profile.rows(by)) == profile.wall_ns
    return profile


def differences(profile: torchprof_hooks.Profile, *roots: nn.Module) -> dict[str, str]:
    """What is off, by module and phase."""
    rows = {row.name: row for row in profile.rows()}
    wrong = {}
    for name, work in _works(roots).items():
        for phase in MODULE_PHASES:
            truth_ns = work.spent_ns[phase]
            found_ns = rows[name].phases[phase].self_ns if name in rows else 0
            if found_ns != truth_ns:
                wrong[f"{name} {phase}"] = _not(found_ns, truth_ns)
    return wrong


def function_differences(
    profile: torchprof_hooks.Profile, *roots: nn.Module
) -> dict[str, str]:
    """The same for the custom Functions that do the work of all `Work` in `roots`."""
    works = _works(roots).values()
    rows = [row for row in profile.rows("function") if "_Burning" in row.name]
    wrong = {}
    for phase in MODULE_PHASES:
        truth_ns = sum(work.spent_ns[phase] for work in works)
        found_ns = sum(row.phases[phase].self_ns for row in rows)
        if found_ns != truth_ns:
            wrong[f"functions {phase}"] = _not(found_ns, truth_ns)
    return wrong


def _not(found_ns: int, truth_ns: int) -> str:
    return f"{found_ns / MS:.2f} ms, not {truth_ns / MS:.2f}"


def _works(roots: tuple[nn.Module, ...]) -> dict[str, Work]:
    return {
        f"{type(root).__name__}.{name}" if name else type(root).__name__: module
        for root in roots
        for name, module in root.named_modules()
        if isinstance(module, Work)
    }
