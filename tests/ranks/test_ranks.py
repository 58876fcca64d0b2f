"""Which rank the others wait for: planted in real processes that train together.

The machine may be busy. So what is planted is large, and where its noise is larger
still, the verdict may be that there is too much of it, but no other.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import torchprof_hooks
from tests.ranks.processes import is_complete, run_processes
from tests.thorough import IS_THOROUGH
from torchprof_hooks import Profile, Ranks, load_ranks
from torchprof_hooks.profiles.ranks.skew import phase_times

pytestmark = pytest.mark.slow

STEPS = 10
SLEEP_S = 0.06
SIZES = (2, 4, 8) if IS_THOROUGH else (4,)
#: All cases together.
LONGEST_S = 240.0
#: With more processes than that on a few cores, steps differ more: there are more.
FEW = 4


def steps_of(size: int) -> int:
    """How many steps so many processes make; each has its turn equally often."""
    return STEPS if size <= FEW else 3 * size


class Slow(torch.autograd.Function):
    """Sleeps in its backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        time.sleep(ctx.seconds)
        return grads[0], None


class Head(nn.Module):
    def __init__(self, forward_s: float, backward_s: float, row_s: float) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.forward_s, self.backward_s, self.row_s = forward_s, backward_s, row_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        of_rows_s = self.row_s * len(x)
        time.sleep(self.forward_s + of_rows_s)
        out: torch.Tensor = Slow.apply(self.fc(x), self.backward_s + of_rows_s)
        return out


class Data(Dataset[torch.Tensor]):
    def __init__(self, seconds: float, steps: int) -> None:
        self.seconds, self.steps = seconds, steps

    def __len__(self) -> int:
        return 2 * ROWS * (self.steps + 1)

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(self.seconds)
        return torch.ones(8)


#: Seconds that a process sleeps in each step: in its module's forward, its backward, in
#: loading data, and in its own code.
Sleeps = tuple[float, float, float, float]
NOWHERE: Sleeps = (0.0, 0.0, 0.0, 0.0)

#: Where the last process is slow, and the rows and phases that may be told.
PLANTED: dict[str, tuple[Sleeps, str, str]] = {
    "forward": ((SLEEP_S, 0, 0, 0), "Head", "forward"),
    "backward": ((0, SLEEP_S, 0, 0), "Head", "backward"),
    "data": ((0, 0, SLEEP_S, 0), "(data loading)", "data"),
    "own code": ((0, 0, 0, SLEEP_S), "(outside modules)", "outside"),
}

#: Rows of a batch; the last process has twice as many, and each takes so long.
ROWS = 2
ROW_S = SLEEP_S / (2 * ROWS)


def train(
    folder: Path,
    sleeps: Sleeps,
    own_code: Sequence[float],
    rows: int = 1,
    row_s: float = 0.0,
) -> None:
    """As many steps as there are times in `own_code`, which are those of its own."""
    torch.manual_seed(0)
    forward_s, backward_s, data_s, own_s = sleeps
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 8), Head(forward_s, backward_s, row_s))
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = iter(DataLoader(Data(data_s, len(own_code)), rows))

    def step(more_s: float) -> None:
        loss = model(next(batches)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(own_s + more_s)

    step(0.0)
    with torchprof_hooks.profile(save=folder / "profile.json"):
        for more_s in own_code:
            step(more_s)


def all_of_them(folder: Path, size: int) -> Callable[[int], None]:
    """What each process does, in one group: it takes long to make."""

    def work(rank: int) -> None:
        steps, is_last = range(steps_of(size)), rank == size - 1
        nothing = [0.0 for _ in steps]
        for name, (sleeps, _, _) in PLANTED.items():
            train(folder / name, sleeps if is_last else NOWHERE, nothing)
        rows = 2 * ROWS if is_last else ROWS
        train(folder / "batch", NOWHERE, nothing, rows, ROW_S)
        rng = random.Random(rank)
        train(folder / "noise", NOWHERE, [SLEEP_S * rng.gauss(1, 0.1) for _ in steps])
        train(folder / "turns", NOWHERE, [SLEEP_S * (n % size == rank) for n in steps])

    return work


#: All that is planted: row and phase that are to be told, None if nobody is slow.
CASES: dict[str, tuple[str, str] | None] = {
    **{name: (row, phase) for name, (_, row, phase) in PLANTED.items()},
    "batch": ("Head", ""),
    "noise": None,
    "turns": None,
}


def check_blame(ranks: Ranks, slow: int, row: str, phase: str) -> None:
    waited = {
        rank.number: phase_times(rank)["waiting"] + phase_times(rank)["communication"]
        for rank in ranks.ranks
    }
    assert min(waited, key=waited.__getitem__) == slow
    verdict = ranks.verdict
    assert verdict.lost_ns > SLEEP_S * 0.5e9
    if verdict.noise_ns > verdict.lost_ns:
        assert verdict.rank is None
        return
    assert verdict.rank == slow
    assert verdict.reason is not None
    found = verdict.reason.row, verdict.reason.phase
    by_class = {"Head": "DistributedDataParallel.module.1"}
    assert found == (by_class.get(row, row), phase)


@pytest.mark.parametrize("size", SIZES)
def test_planted(size: int, tmp_path: Path) -> None:
    for name in CASES:
        (tmp_path / name).mkdir()
    import_module("torch._dynamo")  # takes seconds: not in each process
    run_processes(all_of_them(tmp_path, size), size, LONGEST_S)
    for name, (_, row, phase) in PLANTED.items():
        ranks = load_ranks(tmp_path / name)
        assert (ranks.world_size, ranks.missing, ranks.stale) == (size, (), ())
        check_blame(ranks, size - 1, row, phase)
    # It is slower in forward and backward alike.
    check_blame(load_ranks(tmp_path / "batch"), size - 1, "Head", "")
    for name in ("noise", "turns"):
        assert load_ranks(tmp_path / name).verdict.rank is None
    for path in tmp_path.rglob("*.json"):
        profile = Profile.load(path)
        assert is_complete(profile)
        assert profile.provenance[0].world_size == size


def keep_training(rank: int, folder: Path, fails: bool) -> None:
    """Until there is a file "fail", if that is to be an exception."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank))
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    path = folder / "profile.json"
    with torchprof_hooks.profile(save=path, flush_secs=0.05, ranks_report=False):
        while not (fails and (folder / "fail").exists()):
            net(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            time.sleep(0.001)
        raise RuntimeError("planted")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, None], ids=str)
def test_a_rank_that_dies_is_named(
    number: signal.Signals | None, tmp_path: Path
) -> None:
    """By a signal, or of an exception."""
    children = []
    for rank in range(3):
        child = os.fork()
        if not child:
            try:
                keep_training(rank, tmp_path, fails=number is None and rank == 1)
            finally:
                os._exit(1)
        children.append(child)
    try:
        until = time.monotonic() + 60
        while len(list(tmp_path.glob("*.json"))) < 3 and time.monotonic() < until:
            time.sleep(0.02)
        if number is None:
            (tmp_path / "fail").touch()
        else:
            os.kill(children[1], number)
        until = time.monotonic() + 60
        ranks = load_ranks(tmp_path)
        # Each may be late for a moment, also one that still has to end.
        while (1, number is None) not in _stale(ranks) and time.monotonic() < until:
            time.sleep(0.02)
            ranks = load_ranks(tmp_path)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert (1, number is None) in _stale(ranks)
    assert ranks.missing == ()
    [dead] = [stale for stale in ranks.stale if stale.rank == 1]
    assert dead.steps == ranks.ranks[1].steps
    how = "wrote its file last" if number else "ended"
    assert f"STALE: rank 1 {how}" in ranks.report()
    check_without_a_file_that_is_spoiled(tmp_path)


def check_without_a_file_that_is_spoiled(folder: Path) -> None:
    file = folder / "profile-rank2.json"
    file.write_bytes(file.read_bytes()[:1000])
    ranks = load_ranks(folder)
    assert ranks.missing == (2,)
    [note] = [each for each in ranks.notes if file.name in each]
    assert note.startswith("left out: profile-rank2.json is not a whole JSON file")
    assert "MISSING: there is no file of rank 2" in ranks.report()


def _stale(ranks: Ranks) -> list[tuple[int, bool]]:
    """Which ranks, and whether each has ended."""
    return [(stale.rank, stale.has_ended) for stale in ranks.stale]
