"""Which process a profile is of, on which machine, and when."""

from __future__ import annotations

from typing import NamedTuple


class Coordinate(NamedTuple):
    """A place in one dimension of a device mesh.

    dimension: its name: "dp", "tp"; "dim_0" if it has none.
    place: where this process is, from 0.
    size: how many places there are.
    """

    dimension: str
    place: int
    size: int


class Provenance(NamedTuple):
    """A process that has measured, and when. Moments are nanoseconds since 1970, UTC.

    rank, world_size: which process of the group this is, and of how many.
    local_rank: which one on its machine.
    host, pid: the name of the machine, and the process there.
    device: what the process computes on: "cpu", or "cuda:1 NVIDIA H100".
    torch, package: the versions of torch and of this package.
    command: what was run.
    run: the name that the launcher has given to the run, "" if it has none.
    started_ns: when measuring began.
    written_ns: up to when the profile was measured.
    flush_ns: time between writes of the file while the program runs; 0: it is written
        at the end only.
    has_ended: whether this was written at the end.
    coordinates: places in the dimensions of a ``DeviceMesh``; () if there is none with
        several dimensions.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    host: str = ""
    pid: int = 0
    device: str = ""
    torch: str = ""
    package: str = ""
    command: str = ""
    run: str = ""
    started_ns: int = 0
    written_ns: int = 0
    flush_ns: int = 0
    has_ended: bool = False
    coordinates: tuple[Coordinate, ...] = ()

    def is_process_of(self, other: Provenance) -> bool:
        """Whether both are of one process."""
        return (self.host, self.pid) == (other.host, other.pid)


#: The processes whose profiles were merged, or the only one.
Processes = tuple[Provenance, ...]


def all_of(*every: Processes) -> Processes:
    """The processes of several profiles, sorted by rank. A process that is in several
    of them is taken as it was written last."""
    last: dict[tuple[str, int, int], Provenance] = {}
    for each in sorted(found for some in every for found in some):
        key = each.host, each.pid, each.started_ns
        if key not in last or last[key].written_ns <= each.written_ns:
            last[key] = each
    return tuple(sorted(last.values()))
