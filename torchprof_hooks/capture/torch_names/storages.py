"""Where the bytes of tensors are: the addresses of their storages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from torchprof_hooks.capture.torch_names import Canary


def storages_of(tensor: torch.Tensor) -> list[int]:
    """The address of torch's object for the storage of a tensor, which tells how large
    it is and how it is freed; of a tensor that is made of others, those of its parts.
    None for what has no storage (on the device ``meta``, not initialised yet)."""
    return [*_storages(tensor)] if STORAGES.works() else []


def unnoticed() -> AbstractContextManager[Any]:
    """While tensors are looked at: no mode, and no class of tensors, is to see it."""
    return torch._C.DisableTorchFunction()


def _storages(tensor: Any) -> Iterator[int]:
    try:
        if is_traceable_wrapper_subclass(tensor):
            names, _ = tensor.__tensor_flatten__()
            parts = [getattr(tensor, name) for name in names]
        elif tensor.layout is torch.sparse_coo:
            parts = [tensor._indices(), tensor._values()]
        else:
            yield tensor.untyped_storage()._cdata
            return
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return
    for part in parts:
        yield from _storages(part)


def _has_addresses() -> bool:
    storage: Any = torch.zeros(1).untyped_storage()
    return isinstance(storage._cdata, int) and storage._cdata > 0


STORAGES: Final = Canary("what memory is", ("UntypedStorage._cdata",), _has_addresses)
