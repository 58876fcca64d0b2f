"""The products that models are made of: what comes out of them, and how many
floating-point operations they take, from the shapes of their inputs alone. The formulas
are torch's own, but for the backward of convolutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from math import prod
from typing import Any, Final, NamedTuple

from torchprof_hooks.capture.functions.call_description import CallDescription, Items
from torchprof_hooks.capture.torch_names.inputs import TensorKind
from torchprof_hooks.capture.torch_names.torch_utils import formula_of

Shape = tuple[int, ...]


class Flops(NamedTuple):
    """Floating-point operations of one call, 0 where they are not known.

    operators: how many were called to find out.
    """

    forward: int = 0
    backward: int = 0
    operators: int = 0


class Product(NamedTuple):
    """What shapes tell of one call.

    outputs: shapes of what comes out.
    used: those of the inputs that the wanted gradients are computed with; None if
        shapes do not tell.
    flops: None if shapes do not tell: then the call has to be run.
    """

    outputs: tuple[Shape, ...]
    used: tuple[TensorKind, ...] | None
    flops: Flops | None


#: Arguments by name.
Bound = Mapping[str, Any]
#: Returns what is known of a call; raises ValueError, or something else, if the call is
#: made in a way that is not expected here.
Rule = Callable[[Bound], Product]


def bind(call: CallDescription, names: str) -> Bound:
    """Arguments by name.

    Raises:
        ValueError: some are not in `names`.
    """
    known = names.split()
    if len(call.args) > len(known) or any(name not in known for name, _ in call.kwargs):
        raise ValueError(names)
    return {**dict(zip(known, call.args, strict=False)), **dict(call.kwargs)}


def _of_matrices(
    left: TensorKind, right: TensorKind, batch: int, sizes: tuple[int, int, int]
) -> Flops:
    """Operations of `batch` products of two matrices, and of the wanted gradients."""
    m, k, n = sizes
    one: int = formula_of("mm")((m, k), (k, n), out_val=(m, n)) * batch
    return Flops(one, one * (left.needs_grad + right.needs_grad))


def _of_two(
    left: TensorKind, right: TensorKind, output: Shape, flops: Flops | None
) -> Product:
    """The gradient of each factor is computed with the other one."""
    pairs = (left, right), (right, left)
    used = tuple(factor for factor, other in pairs if other.needs_grad)
    return Product((output,), used, flops)


def _linear(bound: Bound) -> Product:
    value, weight = bound["input"], bound["weight"]
    *rows, k = value.shape
    if k != weight.shape[-1]:
        raise ValueError
    flops = None
    if rows and len(weight.shape) == 2:
        flops = _of_matrices(value, weight, 1, (prod(rows), k, weight.shape[0]))
    return _of_two(value, weight, (*rows, *weight.shape[:-1]), flops)


def _matmul(bound: Bound) -> Product:
    left, right = bound["left"], bound["right"]
    if min(len(left.shape), len(right.shape)) < 2 or left.shape[-1] != right.shape[-2]:
        raise ValueError
    (m, k), n = left.shape[-2:], right.shape[-1]
    batch = broadcast(left.shape[:-2], right.shape[:-2])
    flops = _of_matrices(left, right, prod(batch), (m, k, n))
    return _of_two(left, right, (*batch, m, n), flops)


def broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """The broadcast of two shapes. ``torch.broadcast_shapes`` would load the
    compiler."""
    pairs = zip_longest(reversed(left), reversed(right), fillvalue=1)
    return tuple(b if a == 1 else a for a, b in pairs)[::-1]


def _attention(bound: Bound) -> Product:
    query, key, value = (bound[name] for name in ("query", "key", "value"))
    mask = bound.get("attn_mask")
    masks = (mask,) if isinstance(mask, TensorKind) else ()
    shapes = {kind.shape[:-2] for kind in (query, key, value)}
    if len(shapes) > 1 or any(kind.needs_grad for kind in masks):
        raise ValueError
    # The scores, made of query and key, need a gradient if one of these does.
    both = query._replace(needs_grad=query.needs_grad or key.needs_grad)
    flops = None
    if len(query.shape) == 4:
        batch = prod(query.shape[:-2])
        (length, size), (keys, width) = query.shape[-2:], value.shape[-2:]
        scores = _of_matrices(query, key, batch, (length, size, keys))
        sums = _of_matrices(both, value, batch, (length, keys, width))
        flops = Flops(scores.forward + sums.forward, scores.backward + sums.backward)
    # All gradients need the scores, which are made of query, key and mask.
    used = (query, key, *([value] if both.needs_grad else []), *masks)
    return Product(((*query.shape[:-1], value.shape[-1]),), used, flops)


_CONVOLUTION: Final = "input weight bias stride padding dilation groups"
_TRANSPOSED: Final = "input weight bias stride padding output_padding groups dilation"


def _convolution(transposed: bool) -> Rule:
    def rule(bound: Bound) -> Product:
        value, weight = bound["input"], bound["weight"]
        spatial = len(weight.shape) - 2
        batch = value.shape[: -spatial - 1]  # (): one example
        groups = bound.get("groups", 1)
        channels = weight.shape[1] * groups if transposed else weight.shape[0]
        sizes = _output_sizes(
            bound, value.shape[-spatial:], weight.shape[2:], transposed
        )
        output = (*batch, channels, *sizes)
        x_shape, out_shape = (
            shape if batch else (1, *shape) for shape in (value.shape, output)
        )
        same = (None, 1, 0, 1, transposed)  # bias, stride, ...: not in the formula
        forward: int = formula_of("convolution")(
            x_shape, weight.shape, *same, 0, groups, out_val=out_shape
        )
        needed = (value.needs_grad, weight.needs_grad, False)
        backward = formula_of("convolution_backward")(
            out_shape, x_shape, weight.shape, *same, 0, groups, needed
        )
        return _of_two(value, weight, output, Flops(forward, backward))

    return rule


def _output_sizes(
    bound: Bound, sizes: tuple[int, ...], kernel: tuple[int, ...], transposed: bool
) -> tuple[int, ...]:
    """Spatial sizes of the output of a convolution, from those of its input."""
    if bound.get("padding") == "same":
        return sizes
    padding = 0 if bound.get("padding") == "valid" else bound.get("padding", 0)
    every = zip(
        sizes,
        kernel,
        _each(bound.get("stride", 1), len(sizes)),
        _each(padding, len(sizes)),
        _each(bound.get("dilation", 1), len(sizes)),
        _each(bound.get("output_padding", 0), len(sizes)),
        strict=True,
    )
    if transposed:
        return tuple(
            (n - 1) * step - 2 * pad + reach * (k - 1) + more + 1
            for n, k, step, pad, reach, more in every
        )
    return tuple(
        (n + 2 * pad - reach * (k - 1) - 1) // step + 1
        for n, k, step, pad, reach, _ in every
    )


def _each(value: Any, dimensions: int) -> tuple[int, ...]:
    """One number for each dimension; `value` may be a single one for all."""
    values = value.values if isinstance(value, Items) else (value,)
    return tuple(values) * (dimensions if len(values) == 1 else 1)


_RECURRENT: Final = (
    "input hx params has_biases num_layers dropout train bidirectional batch_first"
)


def _recurrent(bound: Bound) -> Product:
    value, hidden = bound["input"], bound["hx"]
    states: Any = hidden.values if isinstance(hidden, Items) else (hidden,)
    if len(value.shape) != 3:
        raise ValueError
    width = states[0].shape[-1] * (2 if bound["bidirectional"] else 1)
    outputs = ((*value.shape[:2], width), *(state.shape for state in states))
    return Product(outputs, None, _flops_of_steps(bound, states[0]))


def _flops_of_steps(bound: Bound, first: TensorKind) -> Flops | None:
    """Operations of a recurrent layer as if each step was computed by itself, which is
    how the layer is defined. Steps of a sequence differ in nothing but the first one's
    hidden values, which may need no gradient."""
    value = bound["input"]
    per_layer = (4 if bound["has_biases"] else 2) * (2 if bound["bidirectional"] else 1)
    parameters = bound["params"].values
    matrices = [kind for kind in parameters if len(kind.shape) == 2]
    if len(parameters) != per_layer * bound["num_layers"] or len(matrices) * (
        2 if bound["has_biases"] else 1
    ) != len(parameters):
        return None  # with projections: matrices of another kind
    steps = value.shape[1 if bound["batch_first"] else 0]
    examples = first.shape[1]
    directions = 2 if bound["bidirectional"] else 1
    total = Flops()
    for number in range(0, len(matrices), 2):
        is_first_layer = number < 2 * directions
        layer_input = value if is_first_layer else value._replace(needs_grad=True)
        inner, outer = matrices[number : number + 2]
        n, k = inner.shape
        found = (
            _of_matrices(layer_input, inner, 1, (steps * examples, k, n)),
            _of_matrices(first, outer, 1, (examples, outer.shape[1], n)),
            _of_matrices(
                value._replace(needs_grad=True),
                outer,
                1,
                ((steps - 1) * examples, outer.shape[1], n),
            ),
        )
        total = Flops(
            total.forward + sum(flops.forward for flops in found),
            total.backward + sum(flops.backward for flops in found),
        )
    return total


#: By name of the function: names of its arguments, and the rule for its calls.
RULES: Final[Mapping[str, tuple[str, Rule]]] = {
    "linear": ("input weight bias", _linear),
    **dict.fromkeys(("matmul", "mm", "bmm"), ("left right", _matmul)),
    **dict.fromkeys(("addmm", "baddbmm"), ("input left right beta alpha", _matmul)),
    **dict.fromkeys(
        ("conv1d", "conv2d", "conv3d"), (_CONVOLUTION, _convolution(False))
    ),
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        (_TRANSPOSED, _convolution(True)),
    ),
    "scaled_dot_product_attention": (
        "query key value attn_mask dropout_p is_causal scale",
        _attention,
    ),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), (_RECURRENT, _recurrent)),
}
