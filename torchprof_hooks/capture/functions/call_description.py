"""What is kept of a call of a torch function, to find out later how much work it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch

from torchprof_hooks.capture.record.function_names import is_function_of_torch
from torchprof_hooks.capture.torch_names.functions import tensors_in
from torchprof_hooks.capture.torch_names.inputs import (
    TensorKind,
    autocast_type,
    tensor_kind,
)

#: Values that keep nothing alive, and are not changed by anybody.
_VALUES: Final = (type(None), bool, int, float, complex, str, torch.dtype)
#: How many values a call may be given, lists counted by what is in them.
_MOST_VALUES: Final = 64


class Items(NamedTuple):
    """A list or a tuple."""

    is_list: bool
    values: tuple[object, ...]


class CallDescription(NamedTuple):
    """A call of one of torch's own functions. It holds nothing of the user's: in place
    of tensors there are `TensorKind`s.

    autocast: the data type to which autocast converts inputs of products, None if off.
    outputs: the tensors that it returned; None until it has, or if one of them is more
        than a dense array.
    """

    function: Callable[..., Any]
    args: tuple[object, ...]
    kwargs: tuple[tuple[str, object], ...]
    autocast: torch.dtype | None = None
    outputs: tuple[TensorKind, ...] | None = None

    @property
    def autocast_name(self) -> str:
        """``bfloat16``, say; "" where autocast is off."""
        return str(self.autocast or "").removeprefix("torch.")

    def tensors(self) -> list[TensorKind]:
        """All tensors that the call is given, in order."""
        found: list[TensorKind] = []
        left: list[object] = [*self.args, *(value for _, value in self.kwargs)]
        while left:
            value = left.pop(0)
            if isinstance(value, TensorKind):
                found.append(value)
            elif isinstance(value, Items):
                left[:0] = value.values
        return found

    def returned(self, outputs: object) -> CallDescription:
        """This call when it has returned `outputs`."""
        values = outputs if isinstance(outputs, tuple) else (outputs,)  # or a named one
        kinds = tuple(map(tensor_kind, tensors_in(values)))
        known = tuple(kind for kind in kinds if kind is not None)
        return self._replace(outputs=known) if len(known) == len(kinds) else self


def describe_call(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CallDescription | None:
    """The description of a call; None if it cannot be run again without running code of
    the user's, or without objects of the user's, or if it is given no tensor."""
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
    if not describing.device_type:
        return None
    return described._replace(autocast=autocast_type(describing.device_type))


class _CannotDescribeError(Exception):
    pass


class _Describing:
    """device_type: of the first tensor that was met, "" if none was."""

    def __init__(self) -> None:
        self.device_type = ""
        self._values = 0

    def value(self, value: Any) -> object:
        """What stands for `value`."""
        self._values += 1
        if self._values > _MOST_VALUES:
            raise _CannotDescribeError
        if type(value) in _VALUES:
            return value
        if issubclass(type(value), torch.Tensor):
            return self._tensor(value)
        if type(value) in (list, tuple, torch.Size):
            items = tuple(map(self.value, value))
            return Items(type(value) is list, items)
        raise _CannotDescribeError

    def _tensor(self, tensor: torch.Tensor) -> TensorKind:
        kind = tensor_kind(tensor)
        if kind is None:
            raise _CannotDescribeError
        self.device_type = self.device_type or tensor.device.type
        return kind
