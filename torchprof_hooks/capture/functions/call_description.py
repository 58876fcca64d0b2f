"""What is kept of a call of a torch function, to find out later how much work it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from torchprof_hooks.capture.record.function_names import is_function_of_torch
from torchprof_hooks.capture.torch_names.inputs import TensorKind, tensor_kind

#: Values that keep nothing alive, and are not changed by anybody.
_VALUES: Final = (type(None), bool, int, float, complex, str, torch.dtype)
#: How many values a call may be given, lists counted by what is in them.
_MOST_VALUES: Final = 64
#: It takes two to multiply.
_FEWEST_TENSORS: Final = 2


class Items(NamedTuple):
    """A list or a tuple."""

    is_list: bool
    values: tuple[object, ...]


class CallDescription(NamedTuple):
    """A call of one of torch's own functions. It holds nothing of the user's: in place
    of tensors there are `TensorKind`s."""

    function: Callable[..., Any]
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]


def describe_call(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CallDescription | None:
    """The description of a call; None if it cannot be run again without running code of
    the user's, or without objects of the user's, or if it multiplies nothing."""
    if not is_function_of_torch(function):
        return None
    describing = _Describing()
    try:
        described = CallDescription(
            function,
            tuple(map(describing.value, args)),
            tuple((name, describing.value(value)) for name, value in kwargs.items()),
        )
    except _CannotDescribeError:
        return None
    return described if describing.tensors >= _FEWEST_TENSORS else None


class _CannotDescribeError(Exception):
    pass


class _Describing:
    """tensors: how many were met that can be factors of a floating-point product."""

    def __init__(self) -> None:
        self.tensors = 0
        self._values = 0

    def value(self, value: Any) -> object:
        """What stands for `value`."""
        self._values += 1
        if self._values > _MOST_VALUES:
            raise _CannotDescribeError
        if type(value) in _VALUES:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if type(value) in (list, tuple, torch.Size):
            items = tuple(map(self.value, value))
            return Items(type(value) is list, items)
        raise _CannotDescribeError

    def _tensor(self, tensor: torch.Tensor) -> TensorKind:
        kind = tensor_kind(tensor)
        if kind is None:
            raise _CannotDescribeError
        self.tensors += kind.dtype.is_floating_point or kind.dtype.is_complex
        return kind
