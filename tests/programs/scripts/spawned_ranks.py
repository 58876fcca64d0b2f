"""Starts two ranks by torch.multiprocessing, each of which trains a replica (by hand:
what does it in torch imports its compiler, in each rank). With "--other", also one
process that is none."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from datetime import timedelta
from typing import Any

import torch
from torch import distributed, nn


def train(rank: int, store: str) -> None:
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=120),
    )
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    for _ in range(6):
        model(torch.ones(4, 8)).sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            distributed.all_reduce(parameter.grad)
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None
    distributed.destroy_process_group()


if __name__ == "__main__":
    if "--other" in sys.argv:
        other = "import torch; torch.nn.Linear(2, 2)(torch.ones(2)); print('other')"
        print(subprocess.check_output([sys.executable, "-c", other], text=True), end="")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing: Any = torch.multiprocessing
        multiprocessing.spawn(train, (f"{folder}/store",), nprocs=2)
    print("trained")
