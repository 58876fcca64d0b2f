"""How many floating-point operations an operator takes, forward and backward, by the
shapes of its inputs, where the native core has no formula of its own (see
kernel/native/calls/work.h): what torch or the program has registered with
``torch.utils.flop_counter``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from torchprof_hooks.kernel.torch_names.functions import operator_formula
from torchprof_hooks.kernel.torch_names.tensors import tensors_among

#: Floating-point operations of one call, and of its backward.
Work = tuple[int, int]

#: Types of floating-point numbers, and how many tensors of these a product needs.
_FLOATING: Final = ("float", "bfloat", "complex")
_FEWEST_FACTORS: Final = 2


def has_formula(operator: str) -> bool:
    """Whether `work_of` knows operators of this name: "aten::mm"."""
    return operator_formula(operator) is not None


def work_of(operator: str, inputs: Sequence[Any]) -> Work | None:
    """The work of a call; None if it does not follow from the shapes of its inputs.

    inputs: as the native core gives them: tensors as the tuples of `TensorKind`.
    """
    formula, factors = operator_formula(operator), [*tensors_among(inputs)]
    if formula is None or not all(kind.is_array for kind in factors):
        return None
    if sum(kind.dtype.startswith(_FLOATING) for kind in factors) < _FEWEST_FACTORS:
        return None
    with suppress(Exception):  # whatever a formula raises
        forward = int(formula(*map(_shapes, inputs), out_val=None))
        # Each factor that needs a gradient takes as many again.
        gradients = sum(kind.needs_grad for kind in factors)
        return forward, forward * min(gradients, 2)
    return None


def _shapes(value: Any) -> Any:
    if isinstance(value, list):
        return [_shapes(item) for item in value]
    return value[0] if isinstance(value, tuple) else value
