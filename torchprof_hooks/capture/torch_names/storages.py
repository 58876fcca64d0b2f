"""Where the bytes of tensors are: the addresses of their storages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def storage_of(tensor: Any) -> int:
    """The address of torch's object for the storage of a tensor: a number that it and
    all its views have in common, while one of them lives; 0 where there is none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (AttributeError, NotImplementedError, RuntimeError):
        return 0


def storages_of(tensor: torch.Tensor) -> list[int]:
    """The addresses of the storage of a tensor, which tells how large it is and how it
    is freed; of a tensor that is made of others, those of its parts. [] for what has no
    storage (it is not initialised yet)."""
    return [*_storages(tensor)]


def unnoticed() -> AbstractContextManager[Any]:
    """While tensors are looked at: no mode, and no class of tensors, is to see it."""
    return torch._C.DisableTorchFunction()


def _storages(tensor: Any) -> Iterator[int]:
    try:
        if is_traceable_wrapper_subclass(tensor):
            parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        elif tensor.layout is torch.sparse_coo:
            parts = [tensor._indices(), tensor._values()]
        else:
            yield from filter(None, [storage_of(tensor)])
            return
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return
    for part in parts:
        yield from _storages(part)
