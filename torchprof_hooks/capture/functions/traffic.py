"""Bytes that functions read and write, by the shapes and types of their tensors alone.

Each input is read once, and each output written once: that is what a function has to
move, however it is computed. Views of an input move nothing. What that does not tell is
not guessed: whether ``reshape`` copies, or how much of a tensor an index picks.

Of backward passes it is known for products (linear, matmul, convolutions, attention):
the gradient of the output is read once, and for each gradient that is asked for, what
it is computed with; each gradient is written once. To add a gradient to ``.grad`` is
not counted. What other functions keep for their gradients, shapes do not tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

from torchprof_hooks.capture.functions.call_description import CallDescription, Items
from torchprof_hooks.capture.functions.products import (
    COMPILED,
    RULES,
    Bound,
    bind,
    product_of,
)
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

#: They read all of their inputs, and write all that they return; as do the elementwise
#: operators that torch knows, and products.
_WHOLE: Final = frozenset({
    "softmax", "log_softmax", "layer_norm", "group_norm", "instance_norm", "rms_norm",
    "relu", "silu", "leaky_relu", "elu", "selu", "celu", "relu6", "hardtanh",
    "hardswish", "hardsigmoid", "mish", "gelu", "clone", "flip", "roll", "rsub", "rdiv",
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div",
    "sum", "mean", "amax", "amin", "cat", "concat", "stack", "hstack", "vstack",
    "dropout", "multi_head_attention_forward",
})  # fmt: skip

#: They write to a tensor in place, without reading it.
_OVERWRITING: Final = ("copy_", "fill_", "zero_")


class Moved(NamedTuple):
    """Bytes that one call reads and writes."""

    read: int
    written: int


NOTHING: Final = Moved(0, 0)


class CallTraffic(NamedTuple):
    """Bytes moved by one call, and by its backward; None where they are not known."""

    forward: Moved | None = None
    backward: Moved | None = None


@lru_cache(maxsize=4096)
def traffic_by_shapes(call: CallDescription) -> CallTraffic:
    """What `call` moves, and its backward."""
    if call.outputs is None or any(name == "out" for name, _ in call.kwargs):
        return CallTraffic()
    written = getattr(call.function, "__name__", "")
    name = "matmul" if written == "__matmul__" else written
    try:
        if name in RULES and type(call.function) in COMPILED:
            return _of_product(call, name)
        return CallTraffic(_of_other(call, name))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return CallTraffic()  # called in a way that is not expected here


def _of_product(call: CallDescription, name: str) -> CallTraffic:
    """Traffic of a product. Recurrent layers: as if parameters were read only once."""
    forward = _moved_whole(call)
    product = product_of(call, name)
    used = None if product is None else product.used
    learners = [kind for kind in call.tensors() if kind.needs_grad]
    # With autocast, gradients are computed with copies of another type.
    if used is None or not learners or call.autocast is not None:
        return CallTraffic(forward)
    read = forward.written + _sizes(used)
    return CallTraffic(forward, Moved(read, _sizes(learners)))


def _of_other(call: CallDescription, written: str) -> Moved | None:
    name = written.strip("_")
    if name in _VIEWS or (name == "getitem" and _is_view(call)):
        return NOTHING
    if written in _OVERWRITING:
        first, *others = call.tensors()
        return Moved(_sizes(others), first.size_bytes)
    is_compiled = type(call.function) in COMPILED
    if name == "dropout" and not _is_dropping(bind(call, "input p training inplace")):
        return NOTHING
    if name == "batch_norm" and not is_compiled:
        return _batch_norm(call)
    if name == "embedding" and not is_compiled:
        return _embedding(call)
    is_in_place = written.endswith("_") and not written.startswith("_")
    is_elementwise = (is_compiled or is_in_place) and is_pointwise(name)
    return _moved_whole(call) if name in _WHOLE or is_elementwise else None


def _moved_whole(call: CallDescription) -> Moved:
    return Moved(_read_by(call), _sizes(call.outputs or ()))


def _read_by(call: CallDescription) -> int:
    """Bytes of all inputs; a tensor that is given several times counts once."""
    return _sizes(call.tensors()) - call.again_bytes


def _sizes(kinds: Iterable[TensorKind]) -> int:
    return sum(kind.size_bytes for kind in kinds)


def _is_dropping(bound: Bound) -> bool:
    """Whether dropout is on. Where it is off, it returns its input."""
    return bool(bound.get("training", True) and bound.get("p", 0.5))


def _batch_norm(call: CallDescription) -> Moved:
    """Running statistics are written while training."""
    names = "input running_mean running_var weight bias training momentum eps"
    bound = bind(call, names)
    moved = _moved_whole(call)
    if not bound.get("training", False):
        return moved
    running = (bound["running_mean"], bound["running_var"])
    updated = _sizes(kind for kind in running if isinstance(kind, TensorKind))
    return moved._replace(written=moved.written + updated)


def _embedding(call: CallDescription) -> Moved | None:
    """Only the rows that are looked up are read."""
    if dict(call.kwargs).get("max_norm") is not None:
        return None
    rows, _ = call.tensors()
    written = _sizes(call.outputs or ())
    return Moved(rows.size_bytes + written, written)


def _is_view(call: CallDescription) -> bool:
    """Whether elements are picked by numbers alone."""
    place = call.args[1]
    is_tuple = isinstance(place, Items) and not place.is_list
    places = place.values if isinstance(place, Items) and is_tuple else (place,)
    return all(each is None or type(each) is int for each in places)
