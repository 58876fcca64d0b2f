"""A loop with accelerate, as the recipes have it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.fake_clock import MS
from tests.integrations.burning import (
    BACKWARD_MS,
    BATCH,
    FORWARD_MS,
    LOADING_MS,
    Layer,
    Points,
    totals,
)
from torchprof_hooks import profile

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clock")]

STEPS, ACCUMULATED = 4, 2


@pytest.fixture(scope="module")
def accelerate() -> Any:
    """Importing it adds to the filters for warnings, of which tests leave none."""
    return pytest.importorskip("accelerate", reason="of the extra `test`")


def test_a_loop_with_accelerate(accelerate: Any) -> None:
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=ACCUMULATED
    )
    model, points = Layer(), Points(STEPS * ACCUMULATED * BATCH)
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), 1e-3),
        torch.utils.data.DataLoader(points, batch_size=BATCH),
    )
    with profile() as prof:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    found = prof.profile
    calls = STEPS * ACCUMULATED
    assert found.steps == STEPS
    assert totals(found, "Layer", "forward") == (calls, calls * FORWARD_MS)
    assert totals(found, "Layer", "backward") == (calls, calls * BACKWARD_MS)
    assert found.phase_times_ns()["data"] == calls * LOADING_MS * MS
