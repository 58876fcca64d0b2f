"""Rank 0 prints a line when a rank becomes slow while a program runs, and one when that
is over: real processes, of which the last one is slow for a while."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import torchprof_hooks
from tests.ranks.processes import run_processes
from torchprof_hooks.documents import ranks_live

pytestmark = pytest.mark.slow

SIZE = 3
LONGEST_S = 50.0
USUAL_S, SLOWER_S = 0.01, 0.06
FLUSH_SECS = 0.4


class Head(nn.Linear):
    sleep_s = USUAL_S

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.sleep_s)
        return super().forward(x)


def train(folder: Path, rank: int) -> str:
    """Train until rank 0 has printed of the slow rank, and again that it is over; and
    on for some steps each time. What rank 0 has printed."""
    torch.manual_seed(0)
    head = Head(8, 1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), head))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def lines() -> int:
        """How many lines there are. All ranks have to know."""
        count = torch.tensor(sys.stderr.getvalue().count("\n"))  # type: ignore[union-attr]
        distributed.all_reduce(count)
        return int(count)

    def train_until(is_over: Callable[[int, int], bool]) -> None:
        step = 0
        while not is_over(step, lines()):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            step += 1

    began_s = time.monotonic()
    with (
        redirect_stderr(io.StringIO()) as printed,
        torchprof_hooks.profile(save=folder / "profile.json", flush_secs=FLUSH_SECS),
    ):
        train_until(lambda step, _: step >= 100)
        head.sleep_s = SLOWER_S if rank == SIZE - 1 else USUAL_S
        train_until(lambda step, told: told >= 1 or step >= 600)
        train_until(lambda step, _: step >= 30)
        head.sleep_s = USUAL_S
        train_until(lambda step, told: told >= 2 or step >= 1200)
    assert time.monotonic() - began_s < LONGEST_S
    return printed.getvalue()


@pytest.mark.thorough
def test_a_rank_becomes_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_live, "_MOST_SHARE", float("inf"))  # flushes are short
    printed, *others = run_processes(
        lambda rank: train(tmp_path, rank), SIZE, LONGEST_S
    )
    assert others == [""] * (SIZE - 1)
    slow, over = printed.splitlines()
    assert slow.startswith("torchprof_hooks: step ")
    assert f": rank {SIZE - 1} is slow: the others wait " in slow
    assert "it spends that in DistributedDataParallel.module.1, forward (+" in slow
    assert over.endswith(f": rank {SIZE - 1} is no longer slow")
