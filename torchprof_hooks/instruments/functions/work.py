"""How many floating-point operations an operator takes, forward and backward, by the
shapes of its inputs, where the native core has no formula of its own (see
kernel/native/calls/work.h): recurrent layers, and what torch or the program has
registered with ``torch.utils.flop_counter``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from torchprof_hooks.kernel.torch_names.functions import operator_formula
from torchprof_hooks.kernel.torch_names.tensors import TensorKind, tensors_among

#: Floating-point operations of one call, and of its backward.
Work = tuple[int, int]

#: Operators that are not counted by those that they call: on most devices, a whole
#: sequence is one kernel.
_RECURRENT: Final = {f"aten::{n}" for n in ("lstm", "gru", "rnn_tanh", "rnn_relu")}

#: Types of floating-point numbers, and how many tensors of these a product needs.
_FLOATING: Final = ("float", "bfloat", "complex")
_FEWEST_FACTORS: Final = 2


def has_formula(operator: str) -> bool:
    """Whether `work_of` knows operators of this name: "aten::lstm"."""
    return operator in _RECURRENT or operator_formula(operator) is not None


def work_of(operator: str, inputs: Sequence[Any]) -> Work | None:
    """The work of a call; None if it does not follow from the shapes of its inputs.

    inputs: as the native core gives them: tensors as the tuples of `TensorKind`.
    """
    factors = [*tensors_among(inputs)]
    if not all(kind.is_array for kind in factors):
        return None
    if sum(kind.dtype.startswith(_FLOATING) for kind in factors) < _FEWEST_FACTORS:
        return None
    with suppress(Exception):  # whatever a formula raises
        if operator in _RECURRENT:
            return _recurrent(inputs)
        return _by_formula(operator, inputs)
    return None


def _by_formula(operator: str, inputs: Sequence[Any]) -> Work | None:
    """Each factor that needs a gradient takes as many operations again."""
    formula = operator_formula(operator)
    if formula is None:
        return None
    forward = int(formula(*map(_shapes, inputs), out_val=None))
    factors = sum(kind.needs_grad for kind in tensors_among(inputs))
    return forward, forward * min(factors, 2)


def _shapes(value: Any) -> Any:
    if isinstance(value, list):
        return [_shapes(item) for item in value]
    return value[0] if isinstance(value, tuple) else value


def _recurrent(inputs: Sequence[Any]) -> Work:
    """Operations of a recurrent layer, as if each step was computed by itself, which is
    how the layer is defined. All steps of a sequence take the same, but the hidden
    values of the first one may need no gradient."""
    tensor, hidden, parameters, biases, layers, _, _, both_ways, batch_first = inputs
    value, [*weights] = TensorKind(*tensor), tensors_among(parameters)
    first = next(tensors_among([hidden]))
    matrices = [kind for kind in weights if len(kind.shape) == 2]
    directions, per_direction = (2 if both_ways else 1), (4 if biases else 2)
    is_usual = len(weights) == per_direction * directions * layers
    if (
        len(value.shape) != 3
        or not is_usual
        or len(matrices) != 2 * directions * layers
    ):
        raise ValueError  # with projections: matrices of another kind
    steps, examples = value.shape[1 if batch_first else 0], first.shape[1]
    forward = backward = 0
    for number in range(0, len(matrices), 2):
        inner, outer = matrices[number : number + 2]
        n, k = inner.shape
        learns = value.needs_grad or number >= 2 * directions
        of_inputs = 2 * steps * examples * k * n
        of_step = 2 * examples * outer.shape[1] * n
        forward += of_inputs + steps * of_step
        backward += of_inputs * (learns + inner.needs_grad)
        backward += of_step * (steps * (1 + outer.needs_grad) - (not first.needs_grad))
    return forward, backward
