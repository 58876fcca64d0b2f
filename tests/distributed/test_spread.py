"""Under torchrun: the process that works longer shows its work, the others that they
wait for it, however a model is spread over them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.distributed.processes import (
    PLANTED,
    is_complete,
    milliseconds_by_phase,
)
from tests.distributed.spread import KINDS, STEPS
from torchprof_hooks import Profile

ROOT = Path(__file__).parents[2]


#: Four processes leave out what takes each of them seconds to import.
OF_MANY = "data parallel", "sharded", "tensor parallel", "by hand"


def torchrun(count: int, folder: Path, kinds: Iterable[str]) -> None:
    options = "--standalone", f"--nproc-per-node={count}"
    program = "-m", "tests.distributed.spread", str(folder), *kinds
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *options, *program],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("count", "kinds"), [(2, tuple(KINDS)), (4, OF_MANY)])
def test_who_works_and_who_waits(
    count: int, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    torchrun(count, tmp_path, kinds)
    planted = STEPS * PLANTED
    for kind in kinds:
        names = KINDS[kind][1]
        *waiting, late = (
            Profile.load(tmp_path / f"{kind}-{rank}.json") for rank in range(count)
        )
        assert is_complete(late), kind
        assert milliseconds_by_phase(late)["forward"] >= 0.99 * planted, kind
        for profile in waiting:
            assert is_complete(profile), kind
            assert names <= {row.name for row in profile.rows()}, kind
            phases = milliseconds_by_phase(profile)
            waited = phases.get("communication", 0) + phases.get("waiting", 0)
            assert waited > 0.6 * planted, (kind, phases)
            assert waited > 3 * phases.get("forward", 0), (kind, phases)
            assert waited > 3 * phases.get("backward", 0), (kind, phases)
