"""Floating-point operations of the functions that models call most, from the shapes of
their inputs alone.

Running a function on tensors without elements tells the same (see `flop_count`), but
the first of these runs makes torch load its compiler, and a recurrent network is run
step by step. The formulas are torch's own, but for the backward of convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest
from math import prod
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any, Final, NamedTuple

from torchprof_hooks.capture.functions.call_description import CallDescription, Items
from torchprof_hooks.capture.torch_names.inputs import TensorKind
from torchprof_hooks.capture.torch_names.torch_utils import formula_of, is_pointwise


class Flops(NamedTuple):
    """Floating-point operations of one call, 0 where they are not known.

    operators: how many were called to find out.
    """

    forward: int = 0
    backward: int = 0
    operators: int = 0


NOTHING: Final = Flops()

#: Tensors of floating-point numbers in a product.
_FEWEST_FACTORS: Final = 2

COMPILED: Final = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)

Bound = Mapping[str, Any]


def flops_by_shapes(call: CallDescription) -> Flops | None:
    """What `call` takes, and its backward; None if that cannot be told without running
    it."""
    written = getattr(call.function, "__name__", "")
    name = written.strip("_")
    is_without = name in _WITHOUT_PRODUCTS or name.startswith(("foreach_", "fused_"))
    if is_without or not _can_multiply(call):
        return NOTHING
    if type(call.function) not in COMPILED:
        return None  # written in Python: of the same name, but not the same
    if is_pointwise(name):
        return NOTHING
    if name == "matmul":
        written = name  # the operator @
    if written not in RULES:
        return None  # for sums in place, torch has no formula
    names, rule = RULES[written]
    bound = bind(call, names)
    try:
        return None if bound is None else rule(bound)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None  # called in a way that is not expected here


def _can_multiply(call: CallDescription) -> bool:
    """It takes two to multiply."""
    types = [kind.dtype for kind in call.tensors()]
    factors = sum(dtype.is_floating_point or dtype.is_complex for dtype in types)
    return factors >= _FEWEST_FACTORS


def bind(call: CallDescription, names: str) -> Bound | None:
    """Arguments by name; None if there are others."""
    known = names.split()
    if len(call.args) > len(known) or any(name not in known for name, _ in call.kwargs):
        return None
    return {**dict(zip(known, call.args, strict=False)), **dict(call.kwargs)}


def _products(
    left: TensorKind, right: TensorKind, batch: int, sizes: tuple[int, int, int]
) -> Flops:
    """So many products of matrices, and those that their gradients take."""
    m, k, n = sizes
    one: int = formula_of("mm")((m, k), (k, n), out_val=(m, n)) * batch
    return Flops(one, one * (left.needs_grad + right.needs_grad))


def _linear(bound: Bound) -> Flops | None:
    value, weight = bound["input"], bound["weight"]
    if len(value.shape) < 2 or len(weight.shape) != 2:
        return None
    n, k = weight.shape
    if value.shape[-1] != k:
        return None
    return _products(value, weight, 1, (prod(value.shape[:-1]), k, n))


def _matmul(bound: Bound) -> Flops | None:
    left, right = bound["left"], bound["right"]
    if min(len(left.shape), len(right.shape)) < 2 or left.shape[-1] != right.shape[-2]:
        return None
    sizes = (*left.shape[-2:], right.shape[-1])
    batch = prod(broadcast(left.shape[:-2], right.shape[:-2]))
    return _products(left, right, batch, sizes)


def broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """The broadcast of two shapes. ``torch.broadcast_shapes`` would load the
    compiler."""
    pairs = zip_longest(reversed(left), reversed(right), fillvalue=1)
    return tuple(b if a == 1 else a for a, b in pairs)[::-1]


def _attention(bound: Bound) -> Flops | None:
    query, key, value = (bound[name] for name in ("query", "key", "value"))
    mask = bound.get("attn_mask")
    shapes = {kind.shape[:-2] for kind in (query, key, value)}
    learns_mask = isinstance(mask, TensorKind) and mask.needs_grad
    if len(shapes) > 1 or len(query.shape) != 4 or learns_mask:
        return None
    batch = prod(query.shape[:-2])
    (length, size), (keys, width) = query.shape[-2:], value.shape[-2:]
    scores = _products(query, key, batch, (length, size, keys))
    # The scores need a gradient if one of the two does that they are made of.
    both = query._replace(needs_grad=query.needs_grad or key.needs_grad)
    sums = _products(both, value, batch, (length, keys, width))
    return Flops(scores.forward + sums.forward, scores.backward + sums.backward)


_CONVOLUTION: Final = "input weight bias stride padding dilation groups"
_TRANSPOSED: Final = "input weight bias stride padding output_padding groups dilation"


def _convolution(transposed: bool) -> Callable[[Bound], Flops | None]:
    def rule(bound: Bound) -> Flops | None:
        value, weight = bound["input"], bound["weight"]
        spatial = len(weight.shape) - 2
        x_shape = value.shape
        if len(x_shape) == spatial + 1:  # one example, without a batch
            x_shape = (1, *x_shape)
        groups = bound.get("groups", 1)
        channels = weight.shape[1] * groups if transposed else weight.shape[0]
        sizes = output_sizes(bound, x_shape[2:], weight.shape[2:], transposed)
        out_shape = (x_shape[0], channels, *sizes)
        same = (None, 1, 0, 1, transposed)  # bias, stride, ...: not in the formula
        forward: int = formula_of("convolution")(
            x_shape, weight.shape, *same, 0, groups, out_val=out_shape
        )
        needed = (value.needs_grad, weight.needs_grad, False)
        backward = formula_of("convolution_backward")(
            out_shape, x_shape, weight.shape, *same, 0, groups, needed
        )
        return Flops(forward, backward)

    return rule


def output_sizes(
    bound: Bound, sizes: tuple[int, ...], kernel: tuple[int, ...], transposed: bool
) -> tuple[int, ...]:
    """Of the output of a convolution, from those of its input."""
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
    """One number for each dimension, where one may be for all."""
    values = value.values if isinstance(value, Items) else (value,)
    return tuple(values) * (dimensions if len(values) == 1 else 1)


_RECURRENT: Final = (
    "input hx params has_biases num_layers dropout train bidirectional batch_first"
)


def _recurrent(bound: Bound) -> Flops | None:
    """As if each step was computed by itself, which is how it is defined. Steps of one
    sequence differ in nothing but the first one's hidden values, which may need no
    gradient."""
    value, hidden = bound["input"], bound["hx"]
    if len(value.shape) != 3:
        return None
    first: Any = hidden.values[0] if isinstance(hidden, Items) else hidden
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
    total = NOTHING
    for number in range(0, len(matrices), 2):
        is_first_layer = number < 2 * directions
        layer_input = value if is_first_layer else value._replace(needs_grad=True)
        inner, outer = matrices[number : number + 2]
        n, k = inner.shape
        found = (
            _products(layer_input, inner, 1, (steps * examples, k, n)),
            _products(first, outer, 1, (examples, outer.shape[1], n)),
            _products(
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


Rule = Callable[[Bound], Flops | None]

#: By name: those of the arguments, and what tells the operations by them.
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

#: Of several tensors, but nothing that there is a formula for, also in their backward.
_WITHOUT_PRODUCTS: Final = frozenset({
    "batch_norm", "group_norm", "instance_norm", "layer_norm", "native_layer_norm",
    "rms_norm", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy",
    "nll_loss", "kl_div", "poisson_nll_loss", "cosine_embedding_loss",
    "triplet_margin_loss", "margin_ranking_loss", "soft_margin_loss",
    "pairwise_distance", "cosine_similarity", "prelu", "cat", "concat", "stack",
    "hstack", "vstack", "block_diag", "broadcast_tensors", "getitem", "setitem",
    "gather", "scatter", "scatter_add", "index_add", "index_copy", "index_put",
    "index_select", "masked_fill", "masked_scatter", "take_along_dim", "where",
    "iadd", "isub", "imul", "itruediv", "rsub", "rdiv", "copy", "clone", "detach",
    "expand_as", "reshape_as", "view_as", "type_as", "allclose", "equal", "isclose",
})  # fmt: skip
