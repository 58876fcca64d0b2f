"""Which calls count as functions for hooks, and by what names; and of which functions
of torch, and methods of tensors, modes are notified."""

from __future__ import annotations

import inspect
import types
from typing import Any, Final

import torch
from torch.overrides import get_testing_overrides

from torchprof_hooks.kernel.torch_names.functions import is_operator

#: Attributes of a tensor that make a new tensor when they are read. All others describe
#: something about the tensor that is there already.
_COMPUTED_ATTRIBUTES: Final = frozenset({"H", "T", "imag", "mH", "mT", "real"})

#: Calls that compute nothing: they look at what a tensor is rather than at its
#: elements, or set how torch itself behaves. Reading elements (``item``, ``tolist``) is
#: a function: on a device it waits for the work before it.
_NOT_FUNCTIONS: Final = frozenset({
    "__delete__", "__dir__", "__dlpack_device__", "__format__", "__hash__",
    "__len__", "__reduce_ex__", "__repr__", "__set__", "__setstate__",
    "_autocast_to_full_precision", "_autocast_to_reduced_precision", "_dimI",
    "_dimV", "_is_view", "_nested_tensor_size", "_nested_tensor_strides", "_nnz",
    "_record_function_enter", "_record_function_enter_new", "_record_function_exit",
    "_set_grad_enabled", "_set_multithreading_enabled", "_set_view_replay_enabled",
    "as_subclass", "backward", "can_cast", "const_data_ptr", "custom_function_call",
    "data_ptr", "dense_dim", "dim", "dim_order", "element_size",
    "get_default_dtype", "get_device", "grad", "has_names", "is_coalesced",
    "is_complex", "is_conj", "is_contiguous", "is_distributed", "is_floating_point",
    "is_inference", "is_neg", "is_pinned", "is_same_size", "is_set_to", "is_shared",
    "is_signed", "is_storage", "is_tensor", "ndimension", "nelement", "numel",
    "promote_types", "qscheme", "record_stream", "refine_names", "register_hook",
    "register_post_accumulate_grad_hook", "rename", "rename_", "requires_grad_",
    "result_type", "retain_grad", "retains_grad", "set_grad_enabled", "size",
    "sparse_dim", "storage", "storage_offset", "storage_type", "stride",
    "untyped_storage",
})  # fmt: skip


def function_name(function: Any) -> str | None:
    """The user's name of `function`; None if its calls do not count as functions (see
    `_NOT_FUNCTIONS`).

    function: what a torch-function mode is given, or a custom autograd Function (the
        class). Operators have torch's names: ``add`` is ``x + y`` and
        ``y.__radd__(x)``, and ``add_`` is ``x += y``; ``__bool__`` is ``bool(x)``.
    """
    if isinstance(function, type):
        return function.__name__ if hasattr(function, "apply") else None
    name = str(getattr(function, "__name__", type(function).__name__))
    if name == "__get__":
        attribute = getattr(function.__self__, "__name__", "")
        return attribute if attribute in _COMPUTED_ATTRIBUTES else None
    name = name.partition(".")[0]  # torch.ops.aten.mm.default
    if name in _NOT_FUNCTIONS:
        return None
    return _operator(name) if name.startswith("__") else name


def _operator(dunder: str) -> str:
    if dunder in _PYTHON_VALUES:
        return dunder
    name = dunder.strip("_")
    if name in _REFLECTED:
        return name[1:]
    return f"{name[1:]}_" if name in _IN_PLACE else name


_OPERATORS: Final = (
    "add", "and", "div", "floordiv", "lshift", "matmul", "mod", "mul", "or", "pow",
    "rshift", "sub", "truediv", "xor",
)  # fmt: skip
#: Conversions to a Python value. ``bool(x)`` is not ``x.bool()``, which is a tensor.
_PYTHON_VALUES: Final = frozenset(
    f"__{name}__" for name in ("bool", "complex", "float", "index", "int")
)
_REFLECTED: Final = frozenset(f"r{name}" for name in _OPERATORS)
_IN_PLACE: Final = frozenset(f"i{name}" for name in _OPERATORS)


def is_function_class(target: object) -> bool:
    """Whether `target` is a class of custom autograd Functions."""
    base = torch.autograd.Function
    return isinstance(target, type) and issubclass(target, base) and target is not base


def is_of_torch(target: Any) -> bool:
    """Whether `target` is a function of torch, or a method of tensors."""
    if not isinstance(target, _FUNCTION_TYPES) or function_name(target) is None:
        return False
    home = getattr(target, "__objclass__", None)
    if home is not None:
        return issubclass(torch.Tensor, home) and home is not object
    return str(getattr(target, "__module__", None)).partition(".")[0] == "torch"


_FUNCTION_TYPES: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)


def notifies_modes(target: Any) -> bool:
    """Whether torch notifies modes of calls of `target`. It does of its operators, and
    of functions that are written in C++. One in Python has to notify modes itself; if
    it does not, they are notified only of the functions that it calls. A method like
    ``__add__`` shows as another one: ``x + y`` as ``torch.Tensor.add``."""
    if is_operator(target):
        return True
    if not is_of_torch(target) or target.__name__.startswith("__"):
        return False
    if not isinstance(target, types.FunctionType):
        return True
    forms = (target, inspect.unwrap(target))
    codes = [form.__code__ for form in forms if isinstance(form, types.FunctionType)]
    if any("handle_torch_function" in code.co_names for code in codes):
        return True
    return target in get_testing_overrides()  # a function that it calls may do it
