"""Private names of ``torch.utils.data``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from torch.utils.data import DataLoader, dataloader

Method = Callable[..., Any]


class Entrance(NamedTuple):
    """A method through which a program enters the loading of data.

    gives_batches: whether it returns a batch, rather than an iterator over batches.
    """

    owner: type
    name: str
    gives_batches: bool


def _entrances() -> tuple[Entrance, ...]:
    """Where torch has no base class of iterators any more, the time spent waiting for
    batches is outside modules."""
    iterator = getattr(dataloader, "_BaseDataLoaderIter", None)
    making = Entrance(DataLoader, "__iter__", gives_batches=False)
    if iterator is None:
        return (making,)
    return making, Entrance(iterator, "__next__", gives_batches=True)


#: All there are: iterators of other libraries call these in turn.
ENTRANCES: Final = _entrances()


def replace_entrance(
    entrance: Entrance, make: Callable[[Method], Method]
) -> Method | None:
    """Put ``make(method)`` in place of the method of torch; returns that, or None if
    there is none."""
    original: Method | None = vars(entrance.owner).get(entrance.name)
    if original is not None:
        setattr(entrance.owner, entrance.name, make(original))
    return original


def restore_entrance(entrance: Entrance, ours: Method, original: Method) -> None:
    """Undo `replace_entrance`, unless somebody replaced the method after us: what they
    installed calls ours, which then only passes on."""
    if vars(entrance.owner).get(entrance.name) is ours:
        setattr(entrance.owner, entrance.name, original)
