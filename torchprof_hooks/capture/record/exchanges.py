"""What a thread has exchanged with other processes, by kind and group."""

from __future__ import annotations

from typing import NamedTuple

from torchprof_hooks.profiles.collectives import Collective, Collectives, sum_of


class Exchange(NamedTuple):
    """A call of a function of ``torch.distributed``.

    name, group, group_size: see `Collective`.
    start_ns: when it began; 0 if no tracker observed that.
    """

    name: str
    group: str = ""
    group_size: int = 0
    start_ns: int = 0


class Exchanges:
    """Sums over the exchanges of a thread. Only that thread adds; any thread may read.

    waited_ns: time in calls and in waiting, of all kinds together.
    """

    def __init__(self) -> None:
        self.waited_ns = 0
        self._sums: dict[tuple[str, str, int], Collective] = {}

    def add(
        self,
        exchange: Exchange,
        *,
        calls: int = 0,
        bytes_: int = 0,
        call_ns: int = 0,
        waiting_ns: int = 0,
        elapsed_ns: int = 0,
    ) -> None:
        """Add these to the sums for the kind of `exchange`."""
        self.waited_ns += call_ns + waiting_ns
        key = exchange[:3]
        new = Collective(*key, calls, bytes_, call_ns, waiting_ns, elapsed_ns)
        [self._sums[key]] = sum_of([self._sums.get(key, Collective(*key)), new])

    def read(self) -> Collectives:
        """All sums so far."""
        return sum_of(dict(self._sums).values())
