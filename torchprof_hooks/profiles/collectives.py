"""Communication with other processes: which calls, how many bytes, how long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Collective(NamedTuple):
    """Calls of one function of ``torch.distributed`` in one group of processes.

    name: "all_reduce", "send", ...; "wait" and "wait_tensor" for waits of which it is
        not known what they wait for.
    group: what torch calls the group: "default_pg", "mesh_dp"; "" if it is not known.
    group_size: how many processes are in it, 0 if it is not known.
    calls: how often it was called.
    bytes: size of the tensors. Where inputs and outputs differ in size, that of the
        larger ones: of the outputs of gathering, and of the inputs of scattering.
    call_ns: time in the calls without waiting.
    waiting_ns: time in which the program waited for the calls to complete: in the call
        itself, or in ``Work.wait`` later.
    elapsed_ns: from the begin of each call until the program found it complete. If the
        program waits later, what it does until then is included. For buckets, torch
        measures some of the passes, which stand for all.
    """

    name: str
    group: str = ""
    group_size: int = 0
    calls: int = 0
    bytes: int = 0
    call_ns: int = 0
    waiting_ns: int = 0
    elapsed_ns: int = 0

    @property
    def bytes_per_second(self) -> float | None:
        """How fast the exchange was, at least: the time includes waiting for late
        processes, and work before waiting. None without bytes, or without time."""
        if not self.bytes or not self.elapsed_ns:
            return None
        return 1e9 * self.bytes / self.elapsed_ns


Collectives = tuple[Collective, ...]


def sum_of(every: Iterable[Collective]) -> Collectives:
    """The sums of collectives with the same name and group, sorted by name."""
    sums: dict[tuple[str, str, int], Collective] = {}
    for each in every:
        key = each[:3]
        known = sums.get(key, Collective(*key))
        numbers = (a + b for a, b in zip(known[3:], each[3:], strict=True))
        sums[key] = Collective(*key, *numbers)
    return tuple(sums[key] for key in sorted(sums))
