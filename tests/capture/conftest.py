"""What several tests of capturing need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from tests.capture.budgeted import Fixed, Limited
from torchprof_hooks import profile
from torchprof_hooks.capture.sampling import step_budget
from torchprof_hooks.capture.sampling.step_budget import Run
from torchprof_hooks.profiler import Profiler


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Limited:
    """Makes a profiler that measures these runs of steps."""

    def make(*runs: Run, **options: Any) -> Profiler:
        monkeypatch.setattr(step_budget, "StepBudget", lambda share: Fixed(*runs))
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
