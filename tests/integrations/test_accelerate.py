"""A loop of one's own with Accelerate, as the recipe has it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.fake_clock import MS, burn
from tests.integrations.test_transformers import (
    BACKWARD_MS,
    BATCH,
    FORWARD_MS,
    LOADING_MS,
    Burning,
    totals,
)
from torchprof_hooks import profile

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("clock")]

STEPS, ACCUMULATED = 3, 2


class Points(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return STEPS * ACCUMULATED * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        burn(LOADING_MS / BATCH)
        return torch.full((3,), float(index))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = Burning.apply(self.fc(x))
        return result


@pytest.fixture(scope="module", autouse=True)
def accelerate() -> Any:
    return pytest.importorskip("accelerate", reason="of the extra `test`")


def test_a_loop_with_accelerate(accelerate: Any) -> None:
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(
        cpu=True, gradient_accumulation_steps=ACCUMULATED
    )
    model = Net()
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.SGD(model.parameters(), 1e-3),
        torch.utils.data.DataLoader(Points(), batch_size=BATCH),
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
    assert totals(found, "Net", "forward") == (calls, calls * FORWARD_MS)
    assert totals(found, "Net", "backward") == (calls, calls * BACKWARD_MS)
    assert found.phase_times_ns()["data"] == calls * LOADING_MS * MS
