"""Private names by which floating-point operations are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchprof_hooks.capture.torch_names.compiler import is_compiled_autograd_on


class TooManyOperatorsError(RuntimeError):
    """A function does more than it is worth running it once more for."""


class FlopMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up, in `flops`, the floating-point operations that this thread does, by the
    formulas that torch has for matrix products, convolutions and attention.

    ``FlopCounterMode`` does the same, but for that it hooks the modules of all threads,
    and has no end.

    most_operators: how many operators, with or without a formula, may be called.
    operators: how many were.
    """

    def __init__(self, most_operators: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.operators = 0
        self._most_operators = most_operators
        self._formulas = flop_formulas()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and hiding from the compiler would load it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self.operators += 1
        if self.operators > self._most_operators:
            raise TooManyOperatorsError
        formula = self._formulas.get(func._overloadpacket)
        if formula is None:
            with self:  # an operator made of others?
                outputs = func.decompose(*args, **kwargs)
            return func(*args, **kwargs) if outputs is NotImplemented else outputs
        outputs = func(*args, **kwargs)
        self.flops += int(formula(*args, **kwargs, out_val=outputs))
        return outputs


@cache
def flop_formulas() -> Mapping[Any, Callable[..., int]]:
    """By operator; empty where torch has none, and then nothing is counted."""
    try:
        from torch.utils import flop_counter
    except ImportError:
        return {}
    formulas: Mapping[Any, Callable[..., int]]
    formulas = getattr(flop_counter, "flop_registry", {})
    return formulas


def formula_of(name: str) -> Callable[..., int]:
    """Torch's formula for an operator; KeyError if it has none."""
    return flop_formulas()[getattr(torch.ops.aten, name)]


@cache
def is_pointwise(name: str) -> bool:
    """Whether this is an operator that computes each element by itself, as torch marks
    them. An in-place one is what the other is, with an underscore."""
    packet = getattr(torch.ops.aten, name, None) or getattr(
        torch.ops.aten, f"{name}_", None
    )
    if packet is None:
        return False
    overloads = (getattr(packet, overload) for overload in packet.overloads())
    return any(torch.Tag.pointwise in overload.tags for overload in overloads)


def is_compiler_loaded() -> bool:
    """Whether tensors without elements can be computed with at once. Torch does most
    of that in Python, and loads its compiler for it: that takes about a second."""
    return "torch._dynamo" in sys.modules and "sympy" in sys.modules


def can_count_flops() -> bool:
    """Whether backward passes started now are counted rather than compiled."""
    return bool(flop_formulas()) and not is_compiled_autograd_on()
