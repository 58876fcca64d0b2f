"""Workers of Ray Train are ranks like others: they are measured where they train."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchprof_hooks import Profile, load_ranks

SCRIPT = Path(__file__).parent / "scripts" / "ray_ranks.py"
ROOT = Path(__file__).parents[2]

#: Ray gives up workers that have not imported torch by then: on a busy machine, that is
#: too early.
ENVIRONMENT = {
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_USAGE_STATS_ENABLED": "0",
}
LONGEST_S = 900


@pytest.mark.thorough  # it starts eight processes
def test_workers_of_a_torch_trainer(tmp_path: Path) -> None:
    pytest.importorskip("ray.train.torch", reason="no extra has it: it is large")
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    told = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)},
        check=False,
    )
    assert told.returncode == 0, told.stderr
    ranks = load_ranks(tmp_path)
    assert (ranks.world_size, ranks.missing, ranks.stale) == (2, (), ())
    assert [rank.steps for rank in ranks.ranks] == [20, 20]
    assert [rank.provenance.local_rank for rank in ranks.ranks] == [0, 1]
    assert ranks.collectives[0].ranks == [0, 1]
    for path in tmp_path.glob("*.json"):
        rows = {row.name: row for row in Profile.load(path).rows()}
        assert rows["DistributedDataParallel"].calls == 20
