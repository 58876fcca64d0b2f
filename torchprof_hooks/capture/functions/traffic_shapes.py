"""Bytes that functions read and write, from the shapes and types of their inputs alone.

Each input is read once, and each output written once: that is what a function has to
move, however it is computed. Views of an input move nothing. What shapes do not tell is
not guessed: whether ``reshape`` copies, or what comes out of functions without a rule.

Of backward passes it is known for products (linear, matmul, convolutions, attention):
the gradient of the output is read once, and for each gradient that is asked for, what
it is computed with; each gradient is written once. To add a gradient to ``.grad`` is
not counted. What other functions keep for their gradients, shapes do not tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from math import prod
from typing import Any, Final, NamedTuple

import torch

from torchprof_hooks.capture.functions.call_description import CallDescription, Items
from torchprof_hooks.capture.functions.flop_shapes import COMPILED
from torchprof_hooks.capture.functions.products import RULES, Shape, bind, broadcast
from torchprof_hooks.capture.torch_names.inputs import TensorKind
from torchprof_hooks.capture.torch_names.torch_utils import is_pointwise

#: Return their input, or a view of it.
_VIEWS: Final = frozenset({
    "view", "view_as", "transpose", "swapaxes", "swapdims", "permute", "movedim",
    "moveaxis", "t", "adjoint", "expand", "expand_as", "broadcast_to", "unsqueeze",
    "squeeze", "unflatten", "detach", "alias", "chunk", "split", "split_with_sizes",
    "tensor_split", "unbind", "select", "narrow", "diagonal", "as_strided",
    "requires_grad", "broadcast_tensors",
})  # fmt: skip

#: Their output is like their first input, and all inputs are read. Those of one tensor
#: take few operations for each element.
_LIKE_FIRST: Final = frozenset({
    "softmax", "log_softmax", "layer_norm", "group_norm", "instance_norm", "rms_norm",
    "relu", "silu", "leaky_relu", "elu", "selu", "celu", "relu6", "hardtanh",
    "hardswish", "hardsigmoid", "mish", "gelu", "clone", "flip", "roll",
})  # fmt: skip

#: They return one number, unless they are told to reduce nothing.
_LOSSES: Final = frozenset({
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div",
})  # fmt: skip

#: They reduce some dimensions, or all.
_REDUCTIONS: Final = frozenset({"sum", "mean", "amax", "amin"})

#: They return booleans.
_COMPARISONS: Final = frozenset({
    "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and",
    "logical_or", "logical_not", "logical_xor", "signbit",
})  # fmt: skip

#: Given integers, they return integers of the same type.
_WHOLE_NUMBERS: Final = frozenset({
    "add", "sub", "rsub", "mul", "neg", "abs", "clamp", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_not", "maximum", "minimum", "where", "masked_fill",
})  # fmt: skip

#: Autocast leaves the types of their inputs as they are.
_SAME_IN_AUTOCAST: Final = frozenset({
    "add", "sub", "mul", "div", "neg", "abs", "relu", "gelu", "silu", "sigmoid",
    "tanh", "clamp", "maximum", "minimum", "masked_fill", "dropout", "clone", "copy",
    "fill", "zero", "embedding",
}) | _COMPARISONS  # fmt: skip


class Moved(NamedTuple):
    """Bytes that one call reads and writes."""

    read: int
    written: int


class CallTraffic(NamedTuple):
    """Bytes moved by one call, and by its backward; None where they are not known."""

    forward: Moved | None = None
    backward: Moved | None = None


_UNKNOWN: Final = CallTraffic()
_NOTHING: Final = Moved(0, 0)


@lru_cache(maxsize=4096)
def traffic_by_shapes(call: CallDescription) -> CallTraffic:
    """What `call` moves, and its backward."""
    written = getattr(call.function, "__name__", "")
    values = [*call.args, *(value for _, value in call.kwargs)]
    if any(name == "out" for name, _ in call.kwargs) or any(
        isinstance(value, torch.dtype) for value in values
    ):
        return _UNKNOWN
    name = "matmul" if written == "__matmul__" else written
    try:
        if name in RULES and type(call.function) in COMPILED:
            return _of_product(call, name)
        return CallTraffic(_of_other(call, name))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return _UNKNOWN  # called in a way that is not expected here


def _sizes(kinds: Iterable[TensorKind]) -> int:
    return sum(kind.size_bytes for kind in kinds)


def _read(call: CallDescription) -> int:
    """Bytes of all inputs; a tensor that is given several times counts once."""
    return _sizes(call.tensors()) - call.again_bytes


# Products


def _of_product(call: CallDescription, name: str) -> CallTraffic:
    """Traffic of a product. Recurrent layers: as if parameters were read only once."""
    names, rule = RULES[name]
    bound = bind(call, names)
    types = {kind.dtype for kind in call.tensors() if kind.dtype != torch.bool}
    if call.autocast is not None and types <= {torch.float32, call.autocast}:
        types = {call.autocast}
    if bound is None or len(types) != 1:
        return _UNKNOWN
    (dtype,) = types
    if not dtype.is_floating_point:
        return _UNKNOWN
    product = rule(bound)
    # With autocast, gradients are computed with copies of another type.
    if product.used is None and call.autocast is not None:
        return _UNKNOWN
    written = sum(map(prod, product.outputs)) * dtype.itemsize
    forward = Moved(_read(call), written)
    learners = [kind for kind in call.tensors() if kind.needs_grad]
    if not learners or product.used is None or call.autocast is not None:
        return CallTraffic(forward)
    read = written + _sizes(product.used)
    return CallTraffic(forward, Moved(read, _sizes(learners)))


# Others


def _of_other(call: CallDescription, written: str) -> Moved | None:
    name = written.strip("_")
    tensors = call.tensors()
    if name in _VIEWS or (name == "getitem" and _is_view(call)):
        return _NOTHING
    if call.autocast is not None and name not in _SAME_IN_AUTOCAST:
        floats = {kind.dtype for kind in tensors if kind.dtype.is_floating_point}
        if floats != {torch.float32}:
            return None
    if name in _SPECIAL:
        return _SPECIAL[name](call)
    if written.endswith("_") and not written.startswith("_"):
        return _in_place(call, name)
    if name in _LIKE_FIRST:
        return Moved(_read(call), tensors[0].size_bytes)
    return _of_each_element(call, name)


def _in_place(call: CallDescription, name: str) -> Moved | None:
    first, *others = call.tensors()
    if name in ("copy", "fill", "zero"):
        return Moved(_sizes(others), first.size_bytes)
    is_known = name in _LIKE_FIRST or is_pointwise(name)
    return Moved(_read(call), first.size_bytes) if is_known else None


def _of_each_element(call: CallDescription, name: str) -> Moved | None:
    tensors = call.tensors()
    is_known = name in _REVERSED or (
        type(call.function) in COMPILED and is_pointwise(name)
    )
    dtype = _type_of_result(call, name) if is_known else None
    if dtype is None:
        return None
    shape: Shape = reduce(broadcast, (kind.shape for kind in tensors))
    return Moved(_read(call), prod(shape) * dtype.itemsize)


def _type_of_result(call: CallDescription, name: str) -> torch.dtype | None:
    """Data type that an elementwise operator returns; None if that is not clear."""
    if name in _COMPARISONS:
        return torch.bool
    tensors = call.tensors()
    dtypes = [kind.dtype for kind in tensors if kind.shape] or [
        kind.dtype for kind in tensors
    ]
    dtype = reduce(torch.promote_types, dtypes)
    if dtype.is_floating_point:
        are_complex = any(kind.dtype.is_complex for kind in tensors)
        return None if are_complex else dtype
    others = [*call.args, *(value for _, value in call.kwargs)]
    are_whole = not any(isinstance(value, (float, complex)) for value in others)
    are_whole &= all(kind.dtype == dtype for kind in tensors)
    return dtype if are_whole and name in _WHOLE_NUMBERS else None


def _is_view(call: CallDescription) -> bool:
    """Whether elements are picked by numbers alone."""
    place = call.args[1]
    is_tuple = isinstance(place, Items) and not place.is_list
    places = place.values if isinstance(place, Items) and is_tuple else (place,)
    return all(each is None or type(each) is int for each in places)


def _loss(call: CallDescription) -> Moved | None:
    options = dict(call.kwargs)
    are_old = any(options.get(name) is not None for name in ("reduce", "size_average"))
    is_one = options.get("reduction", "mean") != "none" and not are_old
    if not is_one or len(call.args) > _INPUTS_OF_LOSSES:
        return None
    return Moved(_read(call), call.tensors()[0].dtype.itemsize)


def _reduced(call: CallDescription) -> Moved | None:
    bound = bind(call, "input dim keepdim")
    value = None if bound is None else bound["input"]
    if bound is None or value is None or not value.dtype.is_floating_point:
        return None
    dim = bound.get("dim")
    if isinstance(dim, Items):
        dims: Iterable[Any] = dim.values
    else:
        dims = range(len(value.shape)) if dim is None else (dim,)
    folded = prod(value.shape[each] for each in dims)
    read = value.size_bytes
    return Moved(read, read // folded) if folded else None


def _dropout(call: CallDescription) -> Moved | None:
    """Where it is off, it returns its input."""
    bound = bind(call, "input p training inplace")
    if bound is None:
        return None
    size = bound["input"].size_bytes
    is_on = bound.get("training", True) and bound.get("p", 0.5)
    return Moved(size, size) if is_on else _NOTHING


def _batch_norm(call: CallDescription) -> Moved | None:
    """Running statistics are written while training."""
    names = "input running_mean running_var weight bias training momentum eps"
    bound = bind(call, names)
    if bound is None or type(call.function) in COMPILED:
        return None
    written = [bound["input"]]
    if bound.get("training", False):
        running = (bound["running_mean"], bound["running_var"])
        written += [kind for kind in running if isinstance(kind, TensorKind)]
    return Moved(_read(call), _sizes(written))


def _embedding(call: CallDescription) -> Moved | None:
    """Only the rows that are looked up are read."""
    if type(call.function) in COMPILED or dict(call.kwargs).get("max_norm") is not None:
        return None
    rows, weight = call.tensors()
    output = prod(rows.shape) * weight.shape[1] * weight.dtype.itemsize
    return Moved(rows.size_bytes + output, output)


def _joined(call: CallDescription) -> Moved | None:
    tensors = call.tensors()
    are_alike = len({kind.dtype for kind in tensors}) == 1
    return Moved(_read(call), _sizes(tensors)) if are_alike else None


def _multi_head_attention(call: CallDescription) -> Moved | None:
    """Projections and attention, of three inputs that mostly are one."""
    bound = bind(call, _OF_MULTI_HEAD_ATTENTION)
    if bound is None or call.autocast is not None or bound.get("add_zero_attn"):
        return None
    query, keys = bound["query"], bound["key"]
    is_whole = bound["bias_k"] is None and len(query.shape) == 3  # of a batch
    types = {kind.dtype for kind in call.tensors() if kind.dtype != torch.bool}
    if not is_whole or len(types) != 1:
        return None
    length, batch, _ = query.shape
    weights = 0
    if bound.get("need_weights", True):
        heads = 1 if bound.get("average_attn_weights", True) else bound["num_heads"]
        weights = heads * batch * length * keys.shape[0] * query.dtype.itemsize
    return Moved(_read(call), query.size_bytes + weights)


#: How many arguments of losses are given by position, mostly; the rest are options.
_INPUTS_OF_LOSSES: Final = 2
#: The arguments of ``F.multi_head_attention_forward``.
_OF_MULTI_HEAD_ATTENTION: Final = (
    "query key value embed_dim_to_check num_heads in_proj_weight in_proj_bias bias_k "
    "bias_v add_zero_attn dropout_p out_proj_weight out_proj_bias training "
    "key_padding_mask need_weights attn_mask use_separate_proj_weight q_proj_weight "
    "k_proj_weight v_proj_weight static_k static_v average_attn_weights is_causal"
)
#: Functions of torch in Python, for a number and a tensor.
_REVERSED: Final = ("rsub", "rdiv")
_SPECIAL: Final[Mapping[str, Callable[[CallDescription], Moved | None]]] = {
    "dropout": _dropout,
    "batch_norm": _batch_norm,
    "embedding": _embedding,
    "multi_head_attention_forward": _multi_head_attention,
    **dict.fromkeys(_LOSSES, _loss),
    **dict.fromkeys(_REDUCTIONS, _reduced),
    **dict.fromkeys(("cat", "concat", "stack", "hstack", "vstack"), _joined),
}
