"""Where the bytes of tensors are: the addresses of their storages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final, cast

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def storage_of(tensor: Any) -> int:
    """The address of torch's object for the storage of a tensor: a number that it and
    all its views have in common, while one of them lives; 0 where there is none."""
    try:
        return int(torch.Tensor.untyped_storage(tensor)._cdata)
    except (AttributeError, NotImplementedError, RuntimeError):
        return 0


def storages_of(tensor: torch.Tensor) -> list[int]:
    """The addresses of the storage of a tensor, which tells how large it is and how it
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
