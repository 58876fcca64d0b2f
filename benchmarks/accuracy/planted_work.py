"""Modules that keep the processor busy for a known time, in forward and in backward.

What they really took, and their floating-point operations, are the truth that a tool's
numbers are compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Literal

import torch
from torch import Tensor, nn

Phase = Literal["forward", "backward"]
Unit = Literal["ns", "flops"]
PHASES: tuple[Phase, ...] = ("forward", "backward")

ROWS, WIDTH = 4, 8
#: Of a product of inputs and weights, or of gradients and either.
_PRODUCT_FLOPS = 2 * ROWS * WIDTH * WIDTH
#: Adding these up takes some 0.1 ms, in one call: tools that look at each call of
#: Python would look at little else than the clock of a busy loop.
_NUMBERS = range(5_000)


class Work(nn.Module):
    """Multiplies its input by a matrix (of ones in the diagonal), taking its time.

    Forward multiplies with `mm` and backward with `bmm`, so that who counts operations
    by function tells the two apart. What recomputes is forward.

    parameter: without, the module passes its input on, and multiplies nothing.
    """

    def __init__(
        self,
        forward_ms: float = 4.0,
        backward_ms: float = 6.0,
        *,
        parameter: bool = True,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(WIDTH)) if parameter else None
        self.milliseconds: dict[Phase, float] = {
            "forward": forward_ms,
            "backward": backward_ms,
        }
        self.spent: dict[Unit, Counter[Phase]] = {"ns": Counter(), "flops": Counter()}

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _Working.apply(x, self.weight, self)
        return result

    def spend(self, phase: Phase, products: int) -> None:
        """Be busy, and remember for how long, and the products that were to be made."""
        if not self.milliseconds[phase]:
            return
        start_ns = perf_counter_ns()
        end_ns = start_ns + int(self.milliseconds[phase] * 1e6)
        while perf_counter_ns() < end_ns:
            sum(_NUMBERS)
        self.spent["ns"][phase] += perf_counter_ns() - start_ns
        if self.weight is not None:
            self.spent["flops"][phase] += products * _PRODUCT_FLOPS


@dataclass(frozen=True)
class Planted:
    """A training step, and the models that it calls."""

    step: Callable[[], object]
    roots: tuple[nn.Module, ...]

    def works(self) -> list[Work]:
        """All planted modules, each once."""
        found = (module for root in self.roots for module in root.modules())
        return list(dict.fromkeys(m for m in found if isinstance(m, Work)))

    def names(self) -> Iterator[tuple[str, Work]]:
        """All names of the planted modules, with the class of the model in front."""
        for root in self.roots:
            for path, module in root.named_modules(remove_duplicate=False):
                if isinstance(module, Work):
                    yield f"{type(root).__name__}.{path}".rstrip("."), module

    def forget(self) -> None:
        """Begin a new measurement."""
        for work in self.works():
            for spent in work.spent.values():
                spent.clear()


class _Working(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, work: Work) -> Tensor:
        work.spend("forward", products=1)
        ctx.work = work
        ctx.save_for_backward(x, weight)
        return x.clone() if weight is None else x.mm(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return (*_WorkingBackward.apply(grad, *ctx.saved_tensors, ctx.work), None)


class _WorkingBackward(torch.autograd.Function):
    """A function of its own, so that it can be differentiated again: then the module is
    busy once more."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, x: Tensor, weight: Tensor | None, work: Work
    ) -> Any:
        work.spend("backward", products=2)
        ctx.work = work
        ctx.save_for_backward(grad, x, weight)
        if weight is None:
            return grad.clone(), None
        return _product(grad, weight.t()), _product(x.t(), grad)

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor, grad_weight: Tensor) -> Any:
        work: Work = ctx.work
        work.spend("backward", products=4)
        grad, x, weight = ctx.saved_tensors
        if weight is None:
            return grad_x.clone(), None, None, None
        return (
            _product(grad_x, weight) + _product(x, grad_weight),
            _product(grad, grad_weight.t()),
            _product(grad_x.t(), grad),
            None,
        )


def _product(left: Tensor, right: Tensor) -> Tensor:
    return torch.bmm(left[None], right[None])[0]
