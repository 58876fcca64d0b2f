"""Bytes that some functions move, each by a rule of its own; see `traffic_shapes`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, Final, NamedTuple

import torch

from torchprof_hooks.capture.functions.call_description import CallDescription, Items
from torchprof_hooks.capture.functions.flop_shapes import COMPILED
from torchprof_hooks.capture.functions.products import bind
from torchprof_hooks.capture.torch_names.inputs import TensorKind

#: They return one number, unless they are told to reduce nothing.
_LOSSES: Final = frozenset({
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div",
})  # fmt: skip

#: They reduce some dimensions, or all.
_REDUCTIONS: Final = frozenset({"sum", "mean", "amax", "amin"})


class Moved(NamedTuple):
    """Bytes that one call reads and writes."""

    read: int
    written: int


NOTHING: Final = Moved(0, 0)


def sizes_of(kinds: Iterable[TensorKind]) -> int:
    """Bytes of all of them."""
    return sum(kind.size_bytes for kind in kinds)


def read_by(call: CallDescription) -> int:
    """Bytes of all inputs; a tensor that is given several times counts once."""
    return sizes_of(call.tensors()) - call.again_bytes


def _loss(call: CallDescription) -> Moved | None:
    options = dict(call.kwargs)
    are_old = any(options.get(name) is not None for name in ("reduce", "size_average"))
    is_one = options.get("reduction", "mean") != "none" and not are_old
    if not is_one or len(call.args) > _INPUTS_OF_LOSSES:
        return None
    return Moved(read_by(call), call.tensors()[0].dtype.itemsize)


def _reduced(call: CallDescription) -> Moved | None:
    bound = bind(call, "input dim keepdim")
    value = bound["input"]
    if value is None or not value.dtype.is_floating_point:
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
    size = bound["input"].size_bytes
    is_on = bound.get("training", True) and bound.get("p", 0.5)
    return Moved(size, size) if is_on else NOTHING


def _batch_norm(call: CallDescription) -> Moved | None:
    """Running statistics are written while training."""
    names = "input running_mean running_var weight bias training momentum eps"
    bound = bind(call, names)
    if type(call.function) in COMPILED:
        return None
    written = [bound["input"]]
    if bound.get("training", False):
        running = (bound["running_mean"], bound["running_var"])
        written += [kind for kind in running if isinstance(kind, TensorKind)]
    return Moved(read_by(call), sizes_of(written))


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
    return Moved(read_by(call), sizes_of(tensors)) if are_alike else None


def _multi_head_attention(call: CallDescription) -> Moved | None:
    """Projections and attention, of three inputs that mostly are one."""
    bound = bind(call, _OF_MULTI_HEAD_ATTENTION)
    if call.autocast is not None or bound.get("add_zero_attn"):
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
    return Moved(read_by(call), query.size_bytes + weights)


#: How many arguments of losses are given by position, mostly; the rest are options.
_INPUTS_OF_LOSSES: Final = 2
#: The arguments of ``F.multi_head_attention_forward``.
_OF_MULTI_HEAD_ATTENTION: Final = (
    "query key value embed_dim_to_check num_heads in_proj_weight in_proj_bias bias_k "
    "bias_v add_zero_attn dropout_p out_proj_weight out_proj_bias training "
    "key_padding_mask need_weights attn_mask use_separate_proj_weight q_proj_weight "
    "k_proj_weight v_proj_weight static_k static_v average_attn_weights is_causal"
)
SPECIAL: Final[Mapping[str, Callable[[CallDescription], Moved | None]]] = {
    "dropout": _dropout,
    "batch_norm": _batch_norm,
    "embedding": _embedding,
    "multi_head_attention_forward": _multi_head_attention,
    **dict.fromkeys(_LOSSES, _loss),
    **dict.fromkeys(_REDUCTIONS, _reduced),
    **dict.fromkeys(("cat", "concat", "stack", "hstack", "vstack"), _joined),
}
