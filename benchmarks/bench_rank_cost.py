"""What a rank costs: two processes train GPT-2 small in data parallel, bare, under
``profile(save=...)``, and with files that are written again and again meanwhile.

Each kind runs in turn, in short blocks, in the same processes. Wall time of a step, and
what the process has computed in it: files are written by a thread of their own.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import models
import results
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import torchprof_hooks

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.distributed.processes import run_processes

ROUNDS: Final = 12
STEPS: Final = 25
#: After so long, the processes are given up: a step takes up to 100 ms.
LONGEST_S: Final = 900.0
#: Far more often than each minute, which is the default.
FLUSH_SECS: Final = 0.2
USUAL_SECS: Final = 60.0
PROCESSES: Final = 2


class Block(NamedTuple):
    """What a step of it took, in milliseconds.

    cpu_ms: of all threads.
    """

    wall_ms: float
    cpu_ms: float


def bare(_: Path) -> AbstractContextManager[Any]:
    return nullcontext()


def profiled(path: Path) -> AbstractContextManager[Any]:
    return torchprof_hooks.profile(save=path, ranks_report=False)


def flushed(path: Path) -> AbstractContextManager[Any]:
    return torchprof_hooks.profile(save=path, flush_secs=FLUSH_SECS, ranks_report=False)


BARE: Final = "bare"
SAVED: Final = "profile(save=...)"
FLUSHED: Final = f"the same, flush_secs={FLUSH_SECS}"
KINDS: Final[dict[str, Callable[[Path], AbstractContextManager[Any]]]] = {
    BARE: bare,
    SAVED: profiled,
    FLUSHED: flushed,
}


def training_step() -> Callable[[], None]:
    parallel = DistributedDataParallel(models.GPT2())
    optimizer = torch.optim.AdamW(parallel.parameters(), 1e-4)
    tokens, targets = torch.randint(0, 256, (2, 4, 32))

    def step() -> None:
        optimizer.zero_grad()
        logits = parallel(tokens).flatten(0, 1)
        loss: Any = nn.functional.cross_entropy(logits, targets.flatten())
        loss.backward()
        optimizer.step()

    return step


def measure(step: Callable[[], None], kind: str, folder: Path) -> Block:
    with KINDS[kind](folder / "profile.json"):
        step()
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        for _ in range(STEPS):
            step()
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    return Block(1000 * wall_s / STEPS, 1000 * cpu_s / STEPS)


def work(rank: int, folder: Path) -> dict[str, list[Block]]:
    torch.manual_seed(0)
    step = training_step()
    for kind in KINDS:
        measure(step, kind, folder)
    blocks: dict[str, list[Block]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind, found in blocks.items():
            found.append(measure(step, kind, folder))
    return blocks


def medians(blocks: Iterable[Block]) -> Block:
    return Block(*map(median, zip(*blocks, strict=True)))


def main() -> None:
    import_module("torch._dynamo")  # takes seconds: not in each process
    with tempfile.TemporaryDirectory() as name:
        every = run_processes(partial(work, folder=Path(name)), PROCESSES, LONGEST_S)
        size = max(path.stat().st_size for path in Path(name).iterdir())
    rows: list[list[results.Cell]] = []
    shares: dict[str, Block] = {}
    for kind in KINDS:
        here = medians(block for found in every for block in found[kind])
        shares[kind] = medians(
            Block(block.wall_ms / usual.wall_ms, block.cpu_ms / usual.cpu_ms)
            for found in every
            for block, usual in zip(found[kind], found[BARE], strict=True)
        )
        ratios = [f"{ratio:.3f}" for ratio in shares[kind]]
        rows.append([kind, f"{here.wall_ms:.2f}", f"{here.cpu_ms:.2f}", *ratios])
    of_writing = shares[FLUSHED].wall_ms - shares[SAVED].wall_ms
    note = (
        f"GPT-2 small on {PROCESSES} processes with gloo and DistributedDataParallel; "
        f"medians of {ROUNDS} blocks of {STEPS} steps of each kind in each process, in "
        f"turn; ratios to the block without us beside them. The file has "
        f"{size // 1000} kB. Written each minute, which is the default, it would cost "
        f"{100 * of_writing * FLUSH_SECS / USUAL_SECS:.3f} % of a step."
    )
    headers = ["", "ms a step", "ms of CPU", "ratio", "ratio of CPU"]
    table = results.Table("A rank", headers, rows, [note])
    results.save("rank_cost", [table])


if __name__ == "__main__":
    main()
