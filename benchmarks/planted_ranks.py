"""A program for ``torchrun`` and what is like it: a model is trained by processes of
which the last is slow on purpose, as in the tests of ranks.

``--tool``: who measures it from inside: "torchprof_hooks" (profiles), "torch.profiler"
(traces and tables), "traceml" (started by its own command), or nobody.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.distributed.test_ranks import (
    NOWHERE,
    PLANTED,
    ROW_S,
    ROWS,
    SLEEP_S,
    Data,
    Head,
)

#: Rows of a table of torch.profiler that are kept.
_ROWS = 3


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--planted", choices=[*PLANTED, "batch", "noise"])
    parser.add_argument("--tool", default="")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--steps", type=int, default=40)
    return parser.parse_args()


def train(planted: str, steps: int, tool: str, profiler: Any) -> None:
    rank, size = distributed.get_rank(), distributed.get_world_size()
    is_slow = rank == size - 1
    sleeps = PLANTED[planted][0] if is_slow and planted in PLANTED else NOWHERE
    of_batch = planted == "batch"
    rng = random.Random(rank)
    head = Head(sleeps[0], sleeps[1], ROW_S * of_batch)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), head))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rows = (1 + (of_batch and is_slow)) * ROWS
    loader = DataLoader(Data(sleeps[2] / rows, steps), rows)
    with profiler:
        for batch in islice(loader, steps):
            with step_of(tool, model):
                loss = model(batch).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                own_s = SLEEP_S * rng.gauss(1, 0.1) if planted == "noise" else sleeps[3]
                time.sleep(own_s)
            if tool == "torch.profiler":
                profiler.step()


def step_of(tool: str, model: nn.Module) -> Any:
    """What the tool wants a step to be in."""
    if tool == "traceml":
        import traceml_ai

        return traceml_ai.trace_step(model)
    return nullcontext()


def measured_by(tool: str, folder: Path) -> Any:
    if tool == "torch.profiler":
        return torch.profiler.profile(
            activities=[ProfilerActivity.CPU],
            # Without a schedule, traces do not say where steps are.
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=2**30),
        )
    if tool == "torchprof_hooks":
        import torchprof_hooks

        return torchprof_hooks.profile(save=folder / "profile.json", ranks_report=False)
    if tool == "traceml":
        import traceml_ai

        traceml_ai.init(mode="auto")
    return nullcontext()


def keep(profiler: Any, folder: Path, rank: int) -> None:
    """The trace of a rank, and its rows with most own time."""
    profiler.export_chrome_trace(str(folder / f"trace-rank{rank}.json"))
    averages = profiler.key_averages()
    rows = sorted(averages, key=lambda row: -row.self_cpu_time_total)[:_ROWS]
    found = [(row.key, row.self_cpu_time_total / 1000) for row in rows]
    (folder / f"rows-rank{rank}.json").write_text(json.dumps(found))


def main() -> None:
    args = parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo")
    profiler = measured_by(args.tool, args.folder)
    train(args.planted, args.steps, args.tool, profiler)
    if args.tool == "torch.profiler":
        keep(profiler, args.folder, distributed.get_rank())
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
