"""Which rank a process is, as its launcher or torch.distributed says."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from importlib import import_module

import pytest
from torch import distributed

from tests.ranks.processes import join_group, run_processes
from torchprof_hooks import __version__
from torchprof_hooks.kernel.torch_names.distributed import mesh_coordinates
from torchprof_hooks.measure.origin import Origin, RankPlace, find_place
from torchprof_hooks.profiles.provenance import Coordinate

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "2"}
MPI = "OMPI_COMM_WORLD_"


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, (0, 1, 0)),
        (TORCHRUN, (3, 8, 1)),
        (SLURM, (5, 6, 2)),
        ({f"{MPI}RANK": "1", f"{MPI}SIZE": "2", f"{MPI}LOCAL_RANK": "1"}, (1, 2, 1)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4"}, (2, 4, 0)),
        # A batch script of Slurm's is one process, for however many tasks it asks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (0, 1, 0)),
        ({**SLURM, **TORCHRUN}, (3, 8, 1)),
        ({**SLURM, "RANK": "0", "WORLD_SIZE": "1"}, (5, 6, 2)),
        ({"RANK": "three", "WORLD_SIZE": "8"}, (0, 1, 0)),
        ({"RANK": "8", "WORLD_SIZE": "8"}, (0, 1, 0)),
        ({"RANK": "1"}, (0, 1, 0)),
    ],
)
def test_launchers(environment: dict[str, str], place: tuple[int, int, int]) -> None:
    assert find_place(environment) == RankPlace(*place)


def test_a_process_that_no_launcher_tells_asks_torch_distributed() -> None:
    places = run_processes(lambda rank: find_place({}), 2)
    assert places == [(0, 2, 0), (1, 2, 0)]


def places_in_a_mesh(rank: int) -> list[tuple[Coordinate, ...]]:
    """Before there is a mesh, while there is one, and when its groups are gone."""
    origin = Origin(0, mesh_coordinates)
    before = origin.provenance(False).coordinates
    meshes = import_module("torch.distributed.device_mesh")
    meshes.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    during = origin.provenance(False).coordinates
    distributed.destroy_process_group()
    after = origin.provenance(True).coordinates
    join_group(0, 1, f"{tempfile.mkdtemp()}/store")  # to be left, as others are
    return [before, during, after]


def test_the_place_in_a_device_mesh() -> None:
    import_module("torch.distributed.device_mesh")  # takes long: not in each process
    for rank, (before, *others) in enumerate(run_processes(places_in_a_mesh, 4)):
        expected = Coordinate("dp", rank // 2, 2), Coordinate("tp", rank % 2, 2)
        assert before == ()
        assert others == [expected, expected]


def test_the_rank_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    origin = Origin()
    for name in TORCHRUN:
        monkeypatch.delenv(name)
    assert origin.look() == (3, 8, 1)


def test_provenance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setattr(sys, "argv", ["cli.py", "train", "train.yaml"])
    before_ns = time.time_ns()
    origin = Origin(flush_secs=30)
    sys.argv.remove("train")  # as programs with commands of their own do
    found = origin.provenance(True)
    assert before_ns <= found.started_ns <= found.written_ns <= time.time_ns()
    assert (found.host, found.pid) == (os.uname().nodename, os.getpid())
    assert (found.package, found.run, found.flush_ns) == (__version__, "77", 30 * 10**9)
    assert found.has_ended
    assert found.torch
    assert found.command == "cli.py train train.yaml"
