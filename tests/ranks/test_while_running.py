"""Whom the others wait for is known while a program runs: real processes, of which the
last one is slow, and the folder in which they write their files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import torchprof_hooks
from tests.ranks.processes import run_processes
from torchprof_hooks.profiles.errors import ProfileFileError

pytestmark = pytest.mark.slow

SIZE = 3
LONGEST_S = 50.0
USUAL_S, SLOWER_S = 0.01, 0.06


class Head(nn.Linear):
    sleep_s = USUAL_S

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.sleep_s)
        return super().forward(x)


def report_of(folder: Path) -> str:
    """The report of the folder, if it names the slow rank already."""
    try:
        ranks = torchprof_hooks.load_ranks(folder)
    except ProfileFileError:
        return ""  # there is no file yet
    return ranks.report() if ranks.verdict.rank == SIZE - 1 else ""


def train(folder: Path, rank: int) -> str:
    """Train until rank 0 finds the slow one in the files. Its report."""
    torch.manual_seed(0)
    head = Head(8, 1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), head))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    head.sleep_s = SLOWER_S if rank == SIZE - 1 else USUAL_S
    found, path = "", folder / "profile.json"
    with torchprof_hooks.profile(save=path, flush_secs=0.4, ranks_report=False):
        for step in range(600):
            optimizer.zero_grad()
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            found = report_of(folder) if not rank and step % 10 == 9 else ""
            is_found = torch.tensor(len(found))
            distributed.all_reduce(is_found)
            if is_found:
                break
    return found


def test_the_files_say_who_is_slow(tmp_path: Path) -> None:
    report, *_ = run_processes(lambda rank: train(tmp_path, rank), SIZE, LONGEST_S)
    assert f"Rank {SIZE - 1} is slow" in report
    assert "DistributedDataParallel.module.1, forward" in report
