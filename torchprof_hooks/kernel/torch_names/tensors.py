"""What the tensors among a call's inputs are, and where their bytes are. Neither modes
nor classes derived from Tensor see that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Final, NamedTuple, cast

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

#: How far lists of tensors are searched: so many values in all, and so deep.
_SEARCHED: Final = 1024
_DEPTH: Final = 4


class TensorKind(NamedTuple):
    """What an input of an operator is, apart from its elements, as the native core
    tells it.

    shape: ("?",) if only code of the user's can tell, or sizes are no plain numbers.
    c_type, device: "Float", as C++ has it, and "cpu"; "?" where the shape is.
    needs_grad: whether a backward pass computes its gradient.
    is_array: whether it is a dense array, and not batched by ``vmap``.
    """

    shape: tuple[Any, ...]
    c_type: str
    device: str
    needs_grad: bool
    is_array: bool

    @property
    def dtype(self) -> str:
        """As Python has it: "float32"."""
        return _IN_PYTHON.get(self.c_type, self.c_type.lower())


def unusual_types(kinds: Iterable[TensorKind]) -> list[str]:
    """Types of numbers that decide how long a function takes, each once, sorted: those
    that are no whole numbers, other than "float32"."""
    found = {kind.dtype for kind in kinds} - {"float32"}
    return sorted(dtype for dtype in found if dtype.startswith(_NOT_WHOLE))


_NOT_WHOLE: Final = ("float", "bfloat", "complex")


def tensors_among(values: Iterable[Any]) -> Iterator[TensorKind]:
    """The tensors among inputs of an operator, which may be in lists."""
    for value in values:
        if type(value) is tuple:
            yield TensorKind(*value)
        elif type(value) is list:
            yield from tensors_among(value)


#: Names of types of numbers in C++ -> in Python, where they differ.
_IN_PYTHON: Final = {
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexHalf": "complex32",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors in `values`, also those in tuples (with names, too), lists and dicts,
    in their order.

    Runs no code of the user's: other containers are not searched, and classes derived
    from these are not asked for what they contain. Mocks and proxies lie about their
    class to `isinstance`, which is therefore not used. What is very deep is not
    searched, nor more than the first values of very many: lists may contain themselves.
    """
    found: list[torch.Tensor] = []
    for value in islice(values, _SEARCHED):
        if issubclass(type(value), torch.Tensor):
            found.append(value)
        elif issubclass(type(value), _CONTAINERS):
            found += _tensors_inside(value)
    return found


_CONTAINERS: Final = (tuple, list, dict)


def _tensors_inside(container: Any) -> Iterator[torch.Tensor]:
    levels = [_items_of(container)]
    for _ in range(_SEARCHED):
        value: Any = next(levels[-1], levels)
        while value is levels:  # the innermost level is done
            levels.pop()
            if not levels:
                return
            value = next(levels[-1], levels)
        kind = type(value)
        if issubclass(kind, torch.Tensor):
            yield value
        elif issubclass(kind, _CONTAINERS) and len(levels) < _DEPTH:
            levels.append(_items_of(value))


def _items_of(value: Any) -> Iterator[Any]:
    if issubclass(type(value), dict):  # a copy: other threads may change it
        return iter([*islice(dict.values(value), _SEARCHED)])
    kind = tuple if issubclass(type(value), tuple) else list
    return kind.__iter__(value)


def autocast_type(device_type: str) -> torch.dtype | None:
    """The data type to which autocast converts the inputs of matrix products on devices
    of this type; None if autocast is off, or not supported there."""
    try:
        if torch.is_autocast_enabled(device_type):
            return torch.get_autocast_dtype(device_type)
    except RuntimeError:  # there is no autocast for this type of device
        pass
    return None


def device_type_of(tensor: torch.Tensor) -> str:
    """The device type, ``cpu``, say; "" where only code of the user's can tell."""
    with torch._C.DisableTorchFunction():
        return "" if _is_asked_itself(tensor) else tensor.device.type


def description_of(tensor: torch.Tensor) -> str:
    """``float32[2, 3] cpu requires_grad``, without reading elements; what only code of
    the user's can tell is "?"."""
    with torch._C.DisableTorchFunction():
        dtype = str(tensor.dtype).removeprefix("torch.")
        grad = " requires_grad" if tensor.requires_grad else ""
        kind = "" if type(tensor) is torch.Tensor else f" {type(tensor).__name__}"
        is_of_torch = type(tensor).__module__.partition(".")[0] == "torch"
        if _is_asked_itself(tensor) and not is_of_torch:
            return f"{dtype}[?] ?{kind}{grad}"
        try:
            shape = str(list(tensor.shape))
        except RuntimeError:  # a nested tensor has none
            shape = "[?]"
        return f"{dtype}{shape} {tensor.device}{kind}{grad}"


def _is_asked_itself(tensor: torch.Tensor) -> bool:
    """Whether torch may ask a class of the user's for the shape and the device."""
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def storage_of(tensor: Any) -> int:
    """The address of torch's object for the storage of a tensor: a number that it and
    all its views have in common, while one of them lives; 0 where there is none."""
    try:
        return int(torch.Tensor.untyped_storage(tensor)._cdata)
    except (AttributeError, NotImplementedError, RuntimeError):
        return 0


def storages_of(tensor: torch.Tensor) -> list[int]:
    """The addresses of the storage of a tensor, which says how large it is and how it
    is freed; of one of torch's tensors that are made of others, those of its parts. []
    for what has no storage (it is not initialised yet). No code of the user's runs: a
    class of the user's is not asked for parts."""
    return [*_storages(tensor)]


def unnoticed() -> AbstractContextManager[Any]:
    """While tensors are looked at: no mode, and no class of tensors, is to see it."""
    return torch._C.DisableTorchFunction()


def _storages(tensor: Any) -> Iterator[int]:
    try:
        is_of_torch = type(tensor).__module__.partition(".")[0] == "torch"
        if is_of_torch and is_traceable_wrapper_subclass(tensor):
            parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        elif _layout(tensor) is torch.sparse_coo:
            parts = [tensor._indices(), tensor._values()]
        else:
            yield from filter(None, [storage_of(tensor)])
            return
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return
    for part in parts:
        yield from _storages(part)


#: Of a tensor; no class derived from Tensor is asked.
_layout: Final = cast("Any", torch.Tensor.layout).__get__
