"""Private names of torch's checkpoints and loaders of data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch.utils.data import DataLoader, dataloader

from torchprof_hooks.capture.torch_names import Canary
from torchprof_hooks.capture.torch_names.place import Place

# Checkpoints

#: Torch's non-reentrant checkpoint leaves a recomputed forward by this exception once
#: it has what it needs. That is not a failure.
STOPS_RECOMPUTATION: Final = "_StopRecomputationError"


# Loaders


class LoaderMethod(NamedTuple):
    """A method through which a program enters the loading of data.

    find: where it is, or a function that finds out when that is needed.
    gives_batches: whether it returns a batch, rather than an iterator over batches.
    """

    find: Place | Callable[[], Place]
    gives_batches: bool


def _batches() -> Place:
    """``__next__`` of the base class of torch's iterators over loaders. Where there is
    no such class any more, the time spent waiting for batches is outside modules."""
    return _next_of_iterators() if BATCHES.works() else Place(None, "")


def _next_of_iterators() -> Place:
    return Place(getattr(dataloader, "_BaseDataLoaderIter", None), "__next__")


#: All there are: iterators of other libraries call these in turn.
LOADER_METHODS: Final = (
    LoaderMethod(Place(DataLoader, "__iter__"), gives_batches=False),
    LoaderMethod(_batches, gives_batches=True),
)


def _are_batches_from_there() -> bool:
    """Whether iterators over loaders have that ``__next__``, and not one of their own.
    The loader on trial has a generator of its own, so as not to touch the program's."""
    loader: DataLoader[int] = DataLoader([0], generator=torch.Generator())  # type: ignore[arg-type]
    method = _next_of_iterators().read()
    return method is not None and method is getattr(type(iter(loader)), "__next__", 0)


BATCHES: Final = Canary(
    "waiting for batches", ("_BaseDataLoaderIter",), _are_batches_from_there
)
