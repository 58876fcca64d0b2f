"""Floating-point operations of the functions that models call most, from the shapes of
their inputs alone.

Running a function on tensors without elements tells the same (see `flop_count`), but
the first of these runs makes torch load its compiler, and a recurrent network is run
step by step.
"""

from __future__ import annotations

from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Final

from torchprof_hooks.capture.functions.call_description import CallDescription
from torchprof_hooks.capture.functions.products import RULES, Flops, bind
from torchprof_hooks.capture.torch_names.torch_utils import is_pointwise

NOTHING: Final = Flops()

#: How many tensors of floating-point numbers a product has, at least.
_FEWEST_FACTORS: Final = 2

COMPILED: Final = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)


def flops_by_shapes(call: CallDescription) -> Flops | None:
    """What `call` takes, and its backward; None if that cannot be told without running
    it."""
    written = getattr(call.function, "__name__", "")
    name = written.strip("_")
    is_without = name in _WITHOUT_PRODUCTS or name.startswith(("foreach_", "fused_"))
    if is_without or not _can_multiply(call):
        return NOTHING
    if type(call.function) not in COMPILED:
        return None  # in Python: not the operator of this name
    if is_pointwise(name):
        return NOTHING
    if name == "matmul":
        written = name  # the operator @
    if written not in RULES:
        return None  # for sums in place, torch has no formula
    names, rule = RULES[written]
    try:
        return rule(bind(call, names)).flops
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None  # called in a way that is not expected here


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
