"""From slow to fast, as docs/slow.md has it: the commands are run, and their reports
name what is slow, one after the other."""

from __future__ import annotations

from pathlib import Path

from tests.cores import NATIVE_CORE
from tests.documents.docs_samples import SLOW
from tests.running import profiled

SCRIPT = str(Path(__file__).parents[2] / "examples" / "slow.py")

#: The last one takes 6 % of the time, and is told of from 5 % on: more steps are closer
#: to that.
STEPS = (5, 5, 30)

pytestmark = NATIVE_CORE


def test_the_tutorial() -> None:
    data, module, optimizer = (
        profiled(
            SCRIPT, *arguments.split(), f"--steps={steps}", OMP_NUM_THREADS="1"
        ).err
        for arguments, steps in zip(SLOW.values(), STEPS, strict=True)
    )
    assert "Where the time goes: data loading" in data
    assert "\nTip: Waiting for data takes " in data

    assert "\nHottest module: CharLM.blocks.*.norm1, " in module
    assert "Tip: Waiting for data" not in module

    assert "PositionNorm" not in optimizer
    assert "AdamW(..., fused=True)" in optimizer
