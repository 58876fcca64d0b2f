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

from functools import lru_cache, reduce
from math import prod
from typing import Final, NamedTuple

import torch

from torchprof_hooks.capture.functions.call_description import CallDescription, Items
from torchprof_hooks.capture.functions.flop_shapes import COMPILED
from torchprof_hooks.capture.functions.products import RULES, Shape, bind, broadcast
from torchprof_hooks.capture.functions.traffic_rules import (
    NOTHING,
    SPECIAL,
    Moved,
    read_by,
    sizes_of,
)
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


#: Functions of torch in Python, for a number and a tensor.
_REVERSED: Final = ("rsub", "rdiv")


class CallTraffic(NamedTuple):
    """Bytes moved by one call, and by its backward; None where they are not known."""

    forward: Moved | None = None
    backward: Moved | None = None


_UNKNOWN: Final = CallTraffic()


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


# Products


def _of_product(call: CallDescription, name: str) -> CallTraffic:
    """Traffic of a product. Recurrent layers: as if parameters were read only once."""
    names, rule = RULES[name]
    bound = bind(call, names)
    types = {kind.dtype for kind in call.tensors() if kind.dtype != torch.bool}
    if call.autocast is not None and types <= {torch.float32, call.autocast}:
        types = {call.autocast}
    if len(types) != 1:
        return _UNKNOWN
    (dtype,) = types
    if not dtype.is_floating_point:
        return _UNKNOWN
    product = rule(bound)
    # With autocast, gradients are computed with copies of another type.
    if product.used is None and call.autocast is not None:
        return _UNKNOWN
    written = sum(map(prod, product.outputs)) * dtype.itemsize
    forward = Moved(read_by(call), written)
    learners = [kind for kind in call.tensors() if kind.needs_grad]
    if not learners or product.used is None or call.autocast is not None:
        return CallTraffic(forward)
    read = written + sizes_of(product.used)
    return CallTraffic(forward, Moved(read, sizes_of(learners)))


# Others


def _of_other(call: CallDescription, written: str) -> Moved | None:
    name = written.strip("_")
    tensors = call.tensors()
    if name in _VIEWS or (name == "getitem" and _is_view(call)):
        return NOTHING
    if call.autocast is not None and name not in _SAME_IN_AUTOCAST:
        floats = {kind.dtype for kind in tensors if kind.dtype.is_floating_point}
        if floats != {torch.float32}:
            return None
    if name in SPECIAL:
        return SPECIAL[name](call)
    if written.endswith("_") and not written.startswith("_"):
        return _in_place(call, name)
    if name in _LIKE_FIRST:
        return Moved(read_by(call), tensors[0].size_bytes)
    return _of_each_element(call, name)


def _in_place(call: CallDescription, name: str) -> Moved | None:
    first, *others = call.tensors()
    if name in ("copy", "fill", "zero"):
        return Moved(sizes_of(others), first.size_bytes)
    is_known = name in _LIKE_FIRST or is_pointwise(name)
    return Moved(read_by(call), first.size_bytes) if is_known else None


def _of_each_element(call: CallDescription, name: str) -> Moved | None:
    tensors = call.tensors()
    is_known = name in _REVERSED or (
        type(call.function) in COMPILED and is_pointwise(name)
    )
    dtype = _type_of_result(call, name) if is_known else None
    if dtype is None:
        return None
    shape: Shape = reduce(broadcast, (kind.shape for kind in tensors))
    return Moved(read_by(call), prod(shape) * dtype.itemsize)


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
