"""The products that models are made of: how many floating-point operations they take,
by the shapes of tensors alone. The formulas are torch's own, but for the backward of
convolutions.

Running a function on tensors without elements tells the same (see `flop_count`), but
the first of these runs makes torch load its compiler, and a recurrent network is run
step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any, Final, NamedTuple

from torchprof_hooks.capture.functions.call_description import CallDescription, Items
from torchprof_hooks.capture.torch_names.inputs import TensorKind
from torchprof_hooks.capture.torch_names.torch_utils import formula_of, is_pointwise

Shape = tuple[int, ...]


class Flops(NamedTuple):
    """Floating-point operations of one call, 0 where they are not known.

    operators: how many were called to find out.
    """

    forward: int = 0
    backward: int = 0
    operators: int = 0


#: Arguments by name.
Bound = Mapping[str, Any]
#: Returns the operations of a call, given the shape of what it returned; None, or
#: raises ValueError or something else, if it is made in a way that is not expected
#: here: then the call has to be run.
Rule = Callable[[Bound, Shape], Flops | None]


def _bind(call: CallDescription, names: str) -> Bound:
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


def _linear(bound: Bound, output: Shape) -> Flops | None:
    value, weight = bound["input"], bound["weight"]
    if len(value.shape) < 2 or len(weight.shape) != 2:
        return None
    n, k = weight.shape
    return _of_matrices(value, weight, 1, (prod(output[:-1]), k, n))


def _matmul(bound: Bound, output: Shape) -> Flops | None:
    left, right = bound["left"], bound["right"]
    if min(len(left.shape), len(right.shape)) < 2:
        raise ValueError
    *batch, m, n = output
    return _of_matrices(left, right, prod(batch), (m, left.shape[-1], n))


def _attention(bound: Bound, output: Shape) -> Flops | None:
    query, key, value = (bound[name] for name in ("query", "key", "value"))
    mask = bound.get("attn_mask")
    learns_mask = isinstance(mask, TensorKind) and mask.needs_grad
    shapes = {kind.shape[:-2] for kind in (query, key, value)}
    if len(shapes) > 1 or learns_mask or len(query.shape) != 4:
        raise ValueError
    # The scores, made of query and key, need a gradient if one of these does.
    both = query._replace(needs_grad=query.needs_grad or key.needs_grad)
    batch = prod(query.shape[:-2])
    (length, size), (keys, width) = query.shape[-2:], value.shape[-2:]
    scores = _of_matrices(query, key, batch, (length, size, keys))
    sums = _of_matrices(both, value, batch, (length, keys, width))
    return Flops(scores.forward + sums.forward, scores.backward + sums.backward)


_CONVOLUTION: Final = "input weight bias stride padding dilation groups"
_TRANSPOSED: Final = "input weight bias stride padding output_padding groups dilation"


def _convolution(transposed: bool) -> Rule:
    def rule(bound: Bound, output: Shape) -> Flops | None:
        value, weight = bound["input"], bound["weight"]
        is_one = len(value.shape) < len(weight.shape)  # no batch of examples
        x_shape, out_shape = (
            (1, *shape) if is_one else shape for shape in (value.shape, output)
        )
        same = (None, 1, 0, 1, transposed)  # bias, stride, ...: not in the formula
        groups = bound.get("groups", 1)
        forward: int = formula_of("convolution")(
            x_shape, weight.shape, *same, 0, groups, out_val=out_shape
        )
        needed = (value.needs_grad, weight.needs_grad, False)
        backward = formula_of("convolution_backward")(
            out_shape, x_shape, weight.shape, *same, 0, groups, needed
        )
        return Flops(forward, backward)

    return rule


_RECURRENT: Final = (
    "input hx params has_biases num_layers dropout train bidirectional batch_first"
)


def _recurrent(bound: Bound, output: Shape) -> Flops | None:
    """Operations of a recurrent layer as if each step was computed by itself, which is
    how the layer is defined. Steps of a sequence differ in nothing but the first one's
    hidden values, which may need no gradient."""
    value, hidden = bound["input"], bound["hx"]
    first: Any = hidden.values[0] if isinstance(hidden, Items) else hidden
    if len(value.shape) != 3:
        raise ValueError
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
_RULES: Final[Mapping[str, tuple[str, Rule]]] = {
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


NOTHING: Final = Flops()

#: How many tensors of floating-point numbers a product has, at least.
_FEWEST_FACTORS: Final = 2

_COMPILED: Final = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)


def flops_by_shapes(call: CallDescription) -> Flops | None:
    """What `call` takes, and its backward; None if that cannot be told without running
    it."""
    written = getattr(call.function, "__name__", "")
    name = written.strip("_")
    is_without = name in _WITHOUT_PRODUCTS or name.startswith(("foreach_", "fused_"))
    if is_without or not _can_multiply(call):
        return NOTHING
    if type(call.function) not in _COMPILED:
        return None  # in Python: not the operator of this name
    if is_pointwise(name):
        return NOTHING
    if name == "matmul":
        written = name  # the operator @
    if written not in _RULES:
        return None  # for sums in place, torch has no formula
    names, rule = _RULES[written]
    try:
        [output, *_] = call.outputs or ()
        return rule(_bind(call, names), output.shape)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def _can_multiply(call: CallDescription) -> bool:
    """Whether there are two tensors of floating-point numbers to multiply."""
    types = [kind.dtype for kind in call.tensors()]
    factors = sum(dtype.is_floating_point or dtype.is_complex for dtype in types)
    return factors >= _FEWEST_FACTORS


#: Functions of several tensors that do nothing with a formula, also in their backward.
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
