"""What several tests of capturing need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from tests.capture.budgeted import Fixed, Limited
from torchprof_hooks import profile
from torchprof_hooks.capture.sampling import scheduler
from torchprof_hooks.capture.sampling.prices import Level, Run
from torchprof_hooks.profiler import Profiler


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Limited:
    """Makes a profiler that measures these runs of steps."""

    def make(*runs: Run, **options: Any) -> Profiler:
        def fixed(share: float, levels: Sequence[Level]) -> Fixed:
            top = levels[-1]
            given = (Run(top, n) if level else Run(level, n) for level, n in runs)
            return Fixed(*given, levels=levels)

        monkeypatch.setattr(scheduler, "Scheduler", fixed)
        return profile(max_overhead=0.5, **options)

    return make


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of processes that has one."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    distributed.destroy_process_group()
