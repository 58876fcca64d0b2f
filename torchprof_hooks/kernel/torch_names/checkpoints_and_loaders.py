"""Private names of torch's checkpoints and loaders of data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from torch.utils.data import DataLoader, dataloader

from torchprof_hooks.kernel.torch_names import Place

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


def next_batch() -> Place:
    """``__next__`` of the base class of torch's iterators over loaders. Where there is
    no such class any more, the time spent waiting for batches is outside modules."""
    return Place(getattr(dataloader, "_BaseDataLoaderIter", None), "__next__")


#: All there are: iterators of other libraries call these in turn.
LOADER_METHODS: Final = (
    LoaderMethod(Place(DataLoader, "__iter__"), gives_batches=False),
    LoaderMethod(next_batch, gives_batches=True),
)
