"""Of which functions of torch, and methods of tensors, calls are seen."""

from __future__ import annotations

import inspect
import types
from contextlib import suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, get_testing_overrides

from torchprof_hooks.capture.record.function_names import (
    FUNCTION_TYPES,
    function_name,
    is_function_of_torch,
)
from torchprof_hooks.capture.torch_names.functions import is_operator


def as_seen(target: Any) -> Any:
    """The function that a mode is given when `target` is called, a function of torch or
    a method of tensors: for ``torch.Tensor.__add__``, that is ``torch.Tensor.add``.
    None if `target` is neither, or no mode ever sees it."""
    if is_operator(target):
        return target
    if not _is_of_torch(target):
        return None
    if target.__name__[:2] == "__":
        return _operator_as_seen(target)
    return target if _is_told_of(target) else None


def what_to_hook(target: Any) -> str:
    """What to hook in place of `target`, a function of torch that no mode ever sees; ""
    if it is no such function."""
    if not _is_of_torch(target) or as_seen(target) is not None:
        return ""
    name = target.__name__
    called = getattr(getattr(target, "__code__", None), "co_names", ())
    if name in called and hasattr(torch.Tensor, name):
        return f"torch.Tensor.{name}, which it calls"
    return "the functions that it calls"


def _is_of_torch(target: Any) -> bool:
    """Whether `target` is a function of torch, or a method of tensors."""
    return (
        isinstance(target, FUNCTION_TYPES)
        and function_name(target) is not None
        and is_function_of_torch(target)
    )


def _is_told_of(function: Any) -> bool:
    """Whether torch tells modes of calls of `function`, one of its own. It does for all
    that are written in C++. One in Python has to tell modes itself; if it does not,
    they see only the functions that it calls."""
    if not isinstance(function, types.FunctionType):
        return True
    forms = (function, inspect.unwrap(function))
    codes = [form.__code__ for form in forms if isinstance(form, types.FunctionType)]
    if any("handle_torch_function" in code.co_names for code in codes):
        return True
    return function in get_testing_overrides()  # a function that it calls may tell


def _operator_as_seen(operator: Any) -> Any:
    """What a mode is given when `operator`, a method like ``__add__``, is called."""
    value = torch.zeros(1, device="cpu")
    with _Probe() as probe:
        for arguments in ((value, value), (value,), (value, 0, value)):
            with suppress(Exception):
                operator(*arguments)
            if probe.seen is not None:
                break
    return probe.seen


class _Probe(TorchFunctionMode):
    """Notes the first function that is called, and calls none."""

    def __init__(self) -> None:
        self.seen: Any = None

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.seen is None:
            self.seen = func
        raise NotImplementedError
