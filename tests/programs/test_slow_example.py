"""From slow to fast, as docs/slow.md has it: the commands are run, and their reports
name what is slow, one after the other."""

from __future__ import annotations

import pytest

from tests.cores import NATIVE_CORE
from tests.documents.docs_samples import SLOW, report_of

pytestmark = NATIVE_CORE


@pytest.mark.slow
def test_the_tutorial() -> None:
    data, module, optimizer = (
        report_of([*arguments.split(), "--steps", "12"], program="slow")
        for arguments in SLOW.values()
    )
    assert "Where the time goes: data loading" in data
    assert "\nTip: Waiting for data takes " in data

    assert "\nHottest module: CharLM.blocks.*.norm1, " in module
    assert "Tip: Waiting for data" not in module

    assert "PositionNorm" not in optimizer
    assert "AdamW(..., fused=True)" in optimizer
