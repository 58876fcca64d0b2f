"""What a thread has exchanged with other processes, by kind and group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from torchprof_hooks.profiles.collectives import (
    BUCKETS_NAME,
    Collective,
    Collectives,
    sum_of,
)

if TYPE_CHECKING:  # what only reading needs
    from torchprof_hooks.profiles.cells import CellKey
    from torchprof_hooks.profiles.totals import Totals


class Exchange:
    """A call of a function of ``torch.distributed``.

    name, group, group_size: see `Collective`.
    start_ns: when it began; 0 if no tracker was told.
    is_complete: whether the program has waited for it. It may do so again, by futures.
    """

    __slots__ = ("group", "group_size", "is_complete", "name", "start_ns")

    def __init__(
        self, name: str, group: str = "", group_size: int = 0, start_ns: int = 0
    ) -> None:
        self.name = name
        self.group = group
        self.group_size = group_size
        self.start_ns = start_ns
        self.is_complete = False


class GradientBuckets(NamedTuple):
    """What ``DistributedDataParallel`` sums up in a backward pass.

    group_size: of how many processes.
    parts: into how many buckets gradients are divided.
    bytes: of all buckets.
    elapsed_ns: from the begin of the first bucket until the last is done, as torch has
        measured it in some passes; 0 if it has not.
    """

    group_size: int = 0
    parts: int = 0
    bytes: int = 0
    elapsed_ns: int = 0


#: Positions in the sums.
_BYTES: Final = 1
_ELAPSED: Final = 4


class Exchanges:
    """Sums over the exchanges of a thread. Only that thread adds; any thread may read.

    waited_ns: time in calls and in waiting, of all kinds together.
    """

    def __init__(self) -> None:
        self.waited_ns = 0
        self._sums: dict[tuple[str, str, int], list[int]] = {}

    def add(
        self,
        exchange: Exchange,
        *,
        calls: int = 0,
        bytes_: int = 0,
        call_ns: int = 0,
        waiting_ns: int = 0,
        elapsed_ns: int = 0,
    ) -> list[int]:
        """Add these to the sums for the kind of `exchange`, and return the sums."""
        self.waited_ns += call_ns + waiting_ns
        new = (calls, bytes_, call_ns, waiting_ns, elapsed_ns)
        key = exchange.name, exchange.group, exchange.group_size
        known = self._sums.get(key, (0, 0, 0, 0, 0))
        sums = self._sums[key] = [a + b for a, b in zip(known, new, strict=True)]
        return sums

    def add_pass(self, buckets: GradientBuckets) -> None:
        """Add a backward pass that sums up gradients. The latest duration that torch
        has measured is taken for all passes before, too."""
        exchange = Exchange(BUCKETS_NAME, group_size=buckets.group_size)
        sums = self.add(exchange, calls=buckets.parts, bytes_=buckets.bytes)
        if buckets.bytes and buckets.elapsed_ns:
            sums[_ELAPSED] = buckets.elapsed_ns * sums[_BYTES] // buckets.bytes

    def read(self, cells: Mapping[CellKey, Totals]) -> Collectives:
        """All sums so far.

        cells: those of the same thread, for how long passes have waited for gradients.
        """
        found = [Collective(*key, *sums) for key, sums in dict(self._sums).items()]
        waited = [t.self_ns for (_, phase), t in cells.items() if phase == "waiting"]
        for place, each in enumerate(found):
            if each.name == BUCKETS_NAME:
                found[place] = each._replace(waiting_ns=sum(waited))
                waited = []
        return sum_of(found)
