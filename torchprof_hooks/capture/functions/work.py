"""How many floating-point operations a call takes, forward and backward, by the shapes
of its inputs alone. The formulas are torch's own, except for those of the backward.

The usual products (linear, matmul, convolutions, ...) are known by their names. Others
are counted by the operators that they call, which the native core hears of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from torchprof_hooks.capture.torch_names.flop_formulas import (
    formula_of,
    operator_formula,
)
from torchprof_hooks.capture.torch_names.inputs import TensorKind

Shape = tuple[int, ...]


class Work(NamedTuple):
    """Floating-point operations of one call, and of its backward."""

    forward: int = 0
    backward: int = 0

    def plus(self, other: Work) -> Work:
        """Of both."""
        return Work(self.forward + other.forward, self.backward + other.backward)


#: Arguments by name: `TensorKind`s in place of tensors, lists in place of tuples.
Bound = Mapping[str, Any]
#: Raises ValueError, or something else, if a call is made in an unexpected way.
Rule = Callable[[Bound], Work]


def work_of(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> Work | None:
    """The work of a call of one of torch's functions; None if its name and the shapes
    of its inputs do not tell.

    name: ``linear``; or an operator with its namespace, ``aten::linear``.
    """
    short = name.removeprefix("aten::")
    inputs = [*tensors_among([*args, *(kwargs or {}).values()])]
    if not all(kind.is_array for kind in inputs):
        return None
    if sum(kind.dtype.startswith(_FLOATING) for kind in inputs) < _FEWEST_FACTORS:
        return None
    with suppress(Exception):  # whatever a formula raises
        names, rule = _RULES[short]
        return rule(_bind(names, args, kwargs or {}))
    with suppress(Exception):
        return _by_formula(name, args)
    return None


#: Types of floating-point numbers, and how many tensors of these a product needs.
_FLOATING: Final = ("float", "bfloat", "complex")
_FEWEST_FACTORS: Final = 2


def best_of(found: Sequence[Work]) -> Work:
    """The work of a call if that of several such calls is known, with and without
    gradients: the most of each."""
    return Work(
        max((each.forward for each in found), default=0),
        max((each.backward for each in found), default=0),
    )


def _bind(names: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Bound:
    known = names.split()
    if len(args) > len(known) or any(name not in known for name in kwargs):
        raise ValueError(names)
    return {**dict(zip(known, args, strict=False)), **kwargs}


def _by_formula(name: str, args: Sequence[Any]) -> Work | None:
    """By torch's formula for an operator. Each factor that needs a gradient takes as
    many operations again."""
    formula = operator_formula(name)
    if formula is None:
        return None
    forward = int(formula(*map(_shapes, args), out_val=None))
    factors = sum(kind.needs_grad for kind in tensors_among(args))
    return Work(forward, forward * min(factors, 2))


def _shapes(value: Any) -> Any:
    if isinstance(value, list):
        return [_shapes(item) for item in value]
    return value.shape if isinstance(value, TensorKind) else value


def tensors_among(values: Sequence[Any]) -> Iterator[TensorKind]:
    """The tensors in `values`, which may be in lists."""
    for value in values:
        if isinstance(value, TensorKind):
            yield value
        elif isinstance(value, list):
            yield from tensors_among(value)


def _of_matrices(
    left: TensorKind, right: TensorKind, batch: int, sizes: tuple[int, int, int]
) -> Work:
    """Operations of `batch` products of two matrices, and of the wanted gradients."""
    m, k, n = sizes
    one: int = formula_of("mm")((m, k), (k, n), out_val=(m, n)) * batch
    return Work(one, one * (left.needs_grad + right.needs_grad))


def _linear(bound: Bound) -> Work:
    value, weight = bound["input"], bound["weight"]
    n, k = weight.shape
    return _of_matrices(value, weight, 1, (prod(value.shape[:-1]), k, n))


def _matmul(bound: Bound) -> Work:
    left, right = bound["left"], bound["right"]
    if min(len(left.shape), len(right.shape)) < 2:
        raise ValueError
    batch = prod(np.broadcast_shapes(left.shape[:-2], right.shape[:-2]))
    (m, k), n = left.shape[-2:], right.shape[-1]
    return _of_matrices(left, right, batch, (m, k, n))


def _attention(bound: Bound) -> Work:
    query, key, value = (bound[name] for name in ("query", "key", "value"))
    mask = bound.get("attn_mask")
    learns_mask = isinstance(mask, TensorKind) and mask.needs_grad
    shapes = {kind.shape[:-2] for kind in (query, key, value)}
    if len(shapes) > 1 or learns_mask:
        raise ValueError
    # The scores, made of query and key, need a gradient if one of these does.
    both = query._replace(needs_grad=query.needs_grad or key.needs_grad)
    batch = prod(query.shape[:-2])
    (length, size), (keys, width) = query.shape[-2:], value.shape[-2:]
    scores = _of_matrices(query, key, batch, (length, size, keys))
    return scores.plus(_of_matrices(both, value, batch, (length, keys, width)))


_CONVOLUTION: Final = "input weight bias stride padding dilation groups"
_TRANSPOSED: Final = "input weight bias stride padding output_padding groups dilation"
_EITHER: Final = (
    "input weight bias stride padding dilation transposed output_padding groups"
)


def _convolution(bound: Bound) -> Work:
    """A convolution, or a transposed one, as `transposed` says. Each of its gradients
    takes as many products as its forward."""
    value, weight = bound["input"], bound["weight"]
    is_one = len(value.shape) < len(weight.shape)  # no batch of examples
    x_shape = (1, *value.shape) if is_one else value.shape
    # The formula takes the output's size; of a transposed one, the input's.
    sizes = x_shape[2:] if bound["transposed"] else _output_sizes(bound, x_shape[2:])
    out_shape = (x_shape[0], weight.shape[0], *sizes)
    forward: int = formula_of("convolution")(
        x_shape,
        weight.shape,
        *(None, 1, 0, 1, bound["transposed"], 0, bound.get("groups", 1)),
        out_val=out_shape,
    )
    return Work(forward, forward * (value.needs_grad + weight.needs_grad))


def _output_sizes(bound: Bound, sizes: Shape) -> list[int]:
    padding = bound.get("padding", 0)
    if padding == "same":
        return list(sizes)
    each = [
        np.broadcast_to(number, len(sizes)).tolist()
        for number in (
            bound.get("stride", 1),
            0 if padding == "valid" else padding,
            bound.get("dilation", 1),
        )
    ]
    return [
        (size + 2 * around - apart * (kernel - 1) - 1) // step + 1
        for size, kernel, step, around, apart in zip(
            sizes, bound["weight"].shape[2:], *each, strict=True
        )
    ]


def _direct(bound: Bound) -> Work:
    return _convolution({**bound, "transposed": False})


def _transposed(bound: Bound) -> Work:
    return _convolution({**bound, "transposed": True})


_RECURRENT: Final = (
    "input hx params has_biases num_layers dropout train bidirectional batch_first"
)


def _recurrent(bound: Bound) -> Work:
    """Operations of a recurrent layer, as if each step was computed by itself, which is
    how the layer is defined. All steps of a sequence take the same, but the hidden
    values of the first one may need no gradient."""
    value, hidden = bound["input"], bound["hx"]
    first: Any = hidden[0] if isinstance(hidden, list) else hidden
    if len(value.shape) != 3:
        raise ValueError
    per_layer = (4 if bound["has_biases"] else 2) * (2 if bound["bidirectional"] else 1)
    parameters = bound["params"]
    matrices = [kind for kind in parameters if len(kind.shape) == 2]
    if len(parameters) != per_layer * bound["num_layers"] or len(matrices) * (
        2 if bound["has_biases"] else 1
    ) != len(parameters):
        raise ValueError  # with projections: matrices of another kind
    steps = value.shape[1 if bound["batch_first"] else 0]
    examples = first.shape[1]
    directions = 2 if bound["bidirectional"] else 1
    later = value._replace(needs_grad=True)
    total = Work()
    for number in range(0, len(matrices), 2):
        is_first_layer = number < 2 * directions
        inner, outer = matrices[number : number + 2]
        n, k = inner.shape
        again = (examples, outer.shape[1], n)
        layer_input = value if is_first_layer else later
        total = total.plus(
            _of_matrices(layer_input, inner, 1, (steps * examples, k, n))
        )
        total = total.plus(_of_matrices(first, outer, 1, again))
        total = total.plus(_of_matrices(later, outer, steps - 1, again))
    return total


#: By name of the function: names of its arguments, and the rule for its calls.
_RULES: Final[Mapping[str, tuple[str, Rule]]] = {
    "linear": ("input weight bias", _linear),
    **dict.fromkeys(("matmul", "mm", "bmm"), ("left right", _matmul)),
    **dict.fromkeys(("addmm", "baddbmm"), ("input left right beta alpha", _matmul)),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), (_CONVOLUTION, _direct)),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        (_TRANSPOSED, _transposed),
    ),
    "convolution": (_EITHER, _convolution),
    "scaled_dot_product_attention": (
        "query key value attn_mask dropout_p is_causal scale enable_gqa",
        _attention,
    ),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), (_RECURRENT, _recurrent)),
}
