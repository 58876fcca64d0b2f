"""Private names of ``torch.utils.data``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch.utils.data import DataLoader, dataloader

from torchprof_hooks.capture.torch_names.canary import Canary
from torchprof_hooks.capture.torch_names.place import Place


class LoaderMethod(NamedTuple):
    """A method through which a program enters the loading of data.

    find: where it is, asked when it is needed.
    gives_batches: whether it returns a batch, rather than an iterator over batches.
    """

    find: Callable[[], Place]
    gives_batches: bool


def _making() -> Place:
    return Place(DataLoader, "__iter__")


def _batches() -> Place:
    """Where torch has no such base class of iterators any more, the time spent waiting
    for batches is outside modules."""
    return _next_of_iterators() if BATCHES.works() else Place(None, "")


def _next_of_iterators() -> Place:
    return Place(getattr(dataloader, "_BaseDataLoaderIter", None), "__next__")


#: All there are: iterators of other libraries call these in turn.
LOADER_METHODS: Final = (
    LoaderMethod(_making, gives_batches=False),
    LoaderMethod(_batches, gives_batches=True),
)


def _are_batches_from_there() -> bool:
    """Whether iterators over loaders have that method, and not one of their own. The
    loader has a generator: those of the program stay as they are."""
    loader: DataLoader[int] = DataLoader([0], generator=torch.Generator())  # type: ignore[arg-type]
    iterator = iter(loader)
    method = _next_of_iterators().read()
    is_theirs = getattr(type(iterator), "__next__", None) is method
    return method is not None and is_theirs and next(iterator).tolist() == [0]


BATCHES: Final = Canary(
    "waiting for batches", ("_BaseDataLoaderIter",), _are_batches_from_there
)
