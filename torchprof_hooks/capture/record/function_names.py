"""Which calls count as functions, and by what names."""

from __future__ import annotations

import types
from typing import Any, Final

import torch

from torchprof_hooks.capture.torch_names.functions import (
    is_operator,
)
from torchprof_hooks.capture.torch_names.modules import (
    class_name,
)

#: Attributes of a tensor that make a new tensor when they are read. All others tell
#: something about the tensor that is there already.
_COMPUTED_ATTRIBUTES: Final = frozenset({"H", "T", "imag", "mH", "mT", "real"})

#: Calls that compute nothing: they look at what a tensor is rather than at its
#: elements, or set how torch itself behaves. Reading elements (``item``, ``tolist``) is
#: a function: on a device it waits for the work before it.
_NOT_FUNCTIONS: Final = frozenset(
    [
        "__delete__",
        "__dir__",
        "__dlpack_device__",
        "__hash__",
        "__len__",
        "__reduce_ex__",
        "__repr__",
        "__set__",
        "__setstate__",
        "__format__",
        "_autocast_to_full_precision",
        "_autocast_to_reduced_precision",
        "_dimI",
        "_dimV",
        "_is_view",
        "_nested_tensor_size",
        "_nested_tensor_strides",
        "_nnz",
        "_record_function_enter",
        "_record_function_enter_new",
        "_record_function_exit",
        "_set_grad_enabled",
        "_set_multithreading_enabled",
        "_set_view_replay_enabled",
        "set_grad_enabled",
        "as_subclass",
        "backward",
        "can_cast",
        "custom_function_call",
        "const_data_ptr",
        "data_ptr",
        "dense_dim",
        "dim",
        "dim_order",
        "element_size",
        "get_device",
        "get_default_dtype",
        "grad",
        "has_names",
        "is_coalesced",
        "is_complex",
        "is_conj",
        "is_contiguous",
        "is_distributed",
        "is_floating_point",
        "is_inference",
        "is_neg",
        "is_pinned",
        "is_same_size",
        "is_set_to",
        "is_shared",
        "is_signed",
        "is_storage",
        "is_tensor",
        "ndimension",
        "nelement",
        "numel",
        "promote_types",
        "qscheme",
        "record_stream",
        "refine_names",
        "register_hook",
        "register_post_accumulate_grad_hook",
        "rename",
        "rename_",
        "requires_grad_",
        "result_type",
        "retain_grad",
        "retains_grad",
        "size",
        "sparse_dim",
        "storage",
        "storage_offset",
        "storage_type",
        "stride",
        "untyped_storage",
    ]
)

#: What torch adds to the name of a custom Function that ``torch.func`` transforms.
_TRANSFORMED: Final = ("Vmapped", "Generated")


def function_name(function: Any) -> str | None:
    """The user's name of `function`; None if its calls do not count as functions (see
    `_NOT_FUNCTIONS`).

    function: what a torch-function mode is given, or a custom autograd Function (the
        class). Operators have torch's names: ``add`` is ``x + y`` and
        ``y.__radd__(x)``, and ``add_`` is ``x += y``; ``__bool__`` is ``bool(x)``.
    """
    if isinstance(function, type):
        if not hasattr(function, "apply"):  # torch.device, say
            return None
        return transformed_name(function) or function.__name__
    name = str(getattr(function, "__name__", type(function).__name__))
    if name == "__get__":
        attribute = getattr(function.__self__, "__name__", "")
        return attribute if attribute in _COMPUTED_ATTRIBUTES else None
    name = name.partition(".")[0]  # torch.ops.aten.mm.default
    if name in _NOT_FUNCTIONS:
        return None
    return _operator(name) if name.startswith("__") else name


def transformed_name(cls: type) -> str | None:
    """The name of the custom Function for which ``torch.func`` made `cls`; None if
    `cls` is not such a class."""
    prefix, suffix = _TRANSFORMED
    name = cls.__name__.removeprefix(prefix).removesuffix(suffix)
    is_made = cls.__module__.startswith("torch._functorch") and name != cls.__name__
    return name if is_made else None


def _operator(dunder: str) -> str:
    if dunder in _PYTHON_VALUES:
        return dunder
    name = dunder.strip("_")
    if name in _REFLECTED:
        return name[1:]
    return f"{name[1:]}_" if name in _IN_PLACE else name


_OPERATORS: Final = [
    "add",
    "and",
    "div",
    "floordiv",
    "lshift",
    "matmul",
    "mod",
    "mul",
    "or",
    "pow",
    "rshift",
    "sub",
    "truediv",
    "xor",
]
#: Conversions to a Python value. ``bool(x)`` is not ``x.bool()``, which is a tensor.
_PYTHON_VALUES: Final = frozenset(
    f"__{name}__" for name in ("bool", "complex", "float", "index", "int")
)
_REFLECTED: Final = frozenset(f"r{name}" for name in _OPERATORS)
_IN_PLACE: Final = frozenset(f"i{name}" for name in _OPERATORS)


def is_function_of_torch(function: Any) -> bool:
    """Whether `function` is torch's own: a function, a method of tensors, or one of
    torch's operators; but no custom Function."""
    if isinstance(function, type):
        return False
    home = getattr(function, "__objclass__", None)
    if home is not None:
        return issubclass(torch.Tensor, home) and home is not object
    module = str(getattr(function, "__module__", None))
    if is_operator(function):
        return module == "torch._ops.aten"
    return isinstance(function, FUNCTION_TYPES) and module.partition(".")[0] == "torch"


def implementation_of(function: Any) -> str:
    """What runs `function` (see `ModuleInfo`)."""
    if isinstance(function, type):
        return "custom"
    if is_operator(function):
        return "op"
    return "Py" if isinstance(function, types.FunctionType) else "C"


def implementation_of_node(name: str) -> str:
    """What runs an autograd node of this name: those of custom Functions are called
    ``XBackward``, and torch's own ``AddmmBackward0`` or ``torch::autograd::...``."""
    return "custom" if name.endswith("Backward") and "::" not in name else "C"


def lives_as_long_as_torch(function: Any) -> bool:
    """Whether a reference to `function` keeps nothing of the user's alive: it is a
    builtin or an operator, a method of a builtin type, or a function of torch's."""
    if isinstance(function, types.FunctionType):
        return str(function.__module__).partition(".")[0] == "torch"
    if isinstance(function, types.MethodWrapperType):
        return isinstance(function.__self__, types.GetSetDescriptorType)
    if isinstance(function, types.BuiltinFunctionType):
        return not isinstance(function.__self__, torch.Tensor)
    return isinstance(function, FUNCTION_TYPES) or is_operator(function)


def region_name(function: Any) -> str:
    """The name of a function made by torch.compile: that of the original function; if
    the original is a module or a module's method, that of the module's class."""
    owner = getattr(function, "__self__", function)
    if isinstance(owner, torch.nn.Module):
        return class_name(owner)
    return str(getattr(function, "__name__", type(function).__name__))


def is_function_class(target: object) -> bool:
    """Whether `target` is a class of custom autograd Functions."""
    base = torch.autograd.Function
    return isinstance(target, type) and issubclass(target, base) and target is not base


#: The types of torch's functions and of methods of tensors.
FUNCTION_TYPES: Final = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
