"""Names of functions whose outputs have a shape and a type that is easily told."""

from __future__ import annotations

from typing import Final

#: Return their input, or a view of it.
VIEWS: Final = frozenset({
    "view", "view_as", "transpose", "swapaxes", "swapdims", "permute", "movedim",
    "moveaxis", "t", "adjoint", "expand", "expand_as", "broadcast_to", "unsqueeze",
    "squeeze", "unflatten", "detach", "alias", "chunk", "split", "split_with_sizes",
    "tensor_split", "unbind", "select", "narrow", "diagonal", "as_strided",
    "requires_grad", "broadcast_tensors",
})  # fmt: skip

#: Their output is like their first input, and all inputs are read. Those of one tensor
#: take few operations for each element.
LIKE_FIRST: Final = frozenset({
    "softmax", "log_softmax", "layer_norm", "group_norm", "instance_norm", "rms_norm",
    "relu", "silu", "leaky_relu", "elu", "selu", "celu", "relu6", "hardtanh",
    "hardswish", "hardsigmoid", "mish", "gelu", "clone", "flip", "roll",
})  # fmt: skip

#: Of one number, unless they are told to reduce nothing.
LOSSES: Final = frozenset({
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div",
})  # fmt: skip

#: Along some dimensions, or all.
REDUCTIONS: Final = frozenset({"sum", "mean", "amax", "amin"})

#: What comes out is true or false.
COMPARISONS: Final = frozenset({
    "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_and",
    "logical_or", "logical_not", "logical_xor", "signbit",
})  # fmt: skip

#: Of whole numbers, they make whole numbers of the same type.
WHOLE_NUMBERS: Final = frozenset({
    "add", "sub", "rsub", "mul", "neg", "abs", "clamp", "bitwise_and", "bitwise_or",
    "bitwise_xor", "bitwise_not", "maximum", "minimum", "where", "masked_fill",
})  # fmt: skip

#: Autocast leaves the types of their inputs as they are.
SAME_IN_AUTOCAST: Final = frozenset({
    "add", "sub", "mul", "div", "neg", "abs", "relu", "gelu", "silu", "sigmoid",
    "tanh", "clamp", "maximum", "minimum", "masked_fill", "dropout", "clone", "copy",
    "fill", "zero", "embedding",
}) | COMPARISONS  # fmt: skip
