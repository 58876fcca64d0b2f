"""What several tests of capturing need."""

from __future__ import annotations

from typing import Any

import pytest

from tests.capture.budgeted import Fixed, Limited
from torchprof_hooks import profile
from torchprof_hooks.capture import step_budget
from torchprof_hooks.capture.step_budget import Run
from torchprof_hooks.profiler import Profiler


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Limited:
    """Makes a profiler that measures these runs of steps."""

    def make(*runs: Run, **options: Any) -> Profiler:
        monkeypatch.setattr(step_budget, "StepBudget", lambda share: Fixed(*runs))
        return profile(max_overhead=0.5, **options)

    return make
