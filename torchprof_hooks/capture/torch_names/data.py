"""Private names of ``torch.utils.data``."""

from __future__ import annotations

from typing import Final, NamedTuple

from torch.utils.data import DataLoader, dataloader

from torchprof_hooks.capture.torch_names.place import Place


class LoaderMethod(NamedTuple):
    """A method through which a program enters the loading of data.

    gives_batches: whether it returns a batch, rather than an iterator over batches.
    """

    place: Place
    gives_batches: bool


def _iterator_class() -> type | None:
    """The base class of iterators over loaders. Where torch has none any more, the time
    spent waiting for batches is outside modules."""
    return getattr(dataloader, "_BaseDataLoaderIter", None)


#: All there are: iterators of other libraries call these in turn.
LOADER_METHODS: Final = (
    LoaderMethod(Place(DataLoader, "__iter__"), gives_batches=False),
    LoaderMethod(Place(_iterator_class(), "__next__"), gives_batches=True),
)
