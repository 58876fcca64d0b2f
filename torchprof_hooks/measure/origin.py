"""Which process of a run this is, on which machine, and since when."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch
from torch import __version__ as torch_version
from torch import distributed

from torchprof_hooks.measure.accelerator import accelerator_in_use
from torchprof_hooks.profiles.provenance import Coordinate, Provenance
from torchprof_hooks.version import __version__


class RankPlace(NamedTuple):
    """The place of a process among those of its run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


#: Environment variables that launchers set: rank, number of processes, rank on the
#: machine. Other launchers may start torchrun, so its variables come first. Slurm's are
#: those of a job step: a batch script is one process, however many tasks it asks for.
_LAUNCHERS: Final = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
)
#: Environment variables with the name of the run. torchrun calls one without a name
#: "none".
_RUNS: Final = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "OMPI_MCA_ess_base_jobid")
_NO_RUN: Final = "none"


def find_place(environment: Mapping[str, str]) -> RankPlace:
    """The place of this process by its launcher's variables; without those, by
    ``torch.distributed``; without that, the process is alone."""
    for names in _LAUNCHERS:
        rank, world_size, local_rank = (_number(environment.get(n)) for n in names)
        if rank is not None and world_size is not None and rank < world_size != 1:
            return RankPlace(rank, world_size, local_rank or 0)
    if distributed.is_available() and distributed.is_initialized():
        rank, world_size = distributed.get_rank(), distributed.get_world_size()
        return RankPlace(rank, world_size, _number(environment.get("LOCAL_RANK")) or 0)
    return RankPlace()


class Origin:
    """Makes the provenance of the profiles of this process, which begins to measure
    when this object is made.

    flush_secs: time between two writes of the profile; 0 if it is written at the end
        only.
    find_coordinates: finds the place of the process in a device mesh.
    command: what began it, before the program took arguments out of that.
    """

    def __init__(
        self,
        flush_secs: float = 0.0,
        find_coordinates: Callable[[], tuple[Coordinate, ...]] = tuple,
    ) -> None:
        self.command = " ".join(sys.argv) or "an interactive session"
        self._started_ns = time.time_ns()
        self._flush_ns = round(min(flush_secs, 1e9) * 1e9)
        self._place = find_place(os.environ)
        self._find_coordinates = find_coordinates
        self._coordinates: tuple[Coordinate, ...] = ()

    def look(self) -> RankPlace:
        """Find the place of the process, and remember it. Call it while the process is
        in its group, which it may have left by the end."""
        if self._place.world_size == 1:
            self._place = find_place(os.environ)
        if self._place.world_size > 1:
            self._coordinates = self._find_coordinates() or self._coordinates
        return self._place

    def provenance(self, has_ended: bool) -> Provenance:
        """The provenance of a profile of all that was measured until now."""
        runs = (os.environ.get(name, "") for name in _RUNS)
        return Provenance(
            *self.look(),
            host=platform.node(),
            pid=os.getpid(),
            device=_device(),
            torch=str(torch_version),
            package=__version__,
            command=self.command,
            run=next((run for run in runs if run and run != _NO_RUN), ""),
            started_ns=self._started_ns,
            written_ns=time.time_ns(),
            flush_ns=self._flush_ns,
            has_ended=has_ended,
            coordinates=self._coordinates,
        )


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() else None


def _device() -> str:
    """The device that the process uses. Does not initialise it."""
    found = accelerator_in_use()
    if found is None:
        return "cpu"
    name = torch.cuda.get_device_name(found) if found.type == "cuda" else ""
    return f"{found} {name}".rstrip()
