"""The two cores side by side: what each adds to programs, in turns of processes.

Aims of the native core: `profile()` adds at most 4 us per module and step to a chain of
nn.Linear, 3 to one of nn.ReLU, 0.08 of what full backward hooks add; GPT-2 small takes
at most 1.05 of its time with each step measured, 1.25 with functions, 1.08 with memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Final

import results
import torch
from bench import rounds
from bench_hooks import MODULES, compare_steps, of_modules
from models import chain_step, gpt2_step
from torch import nn

#: And what stands above their columns.
CORES: Final = {"python": "core in Python", "native": "native core"}
#: Processes of each core, which take turns; and turns in each.
PROCESSES, TURNS = 3, 40
CHAIN: Final = 100
#: What is measured, and the most that it is to be.
AIMS: Final = {
    "profile(), us per module and step, chain of nn.Linear": 4,
    "profile(), us per module and step, chain of nn.ReLU": 3,
    "profile(), of what full backward hooks add, nn.Linear": 0.08,
    "GPT-2 small, every step measured": 1.05,
    "... functions=True": 1.25,
    "... memory=True": 1.08,
}


def main() -> None:
    runs: dict[str, list[list[float]]] = {core: [] for core in CORES}
    for _ in range(rounds(PROCESSES * 20) // 20 or 1):
        for core, found in runs.items():
            found.append(in_process(core))
    figures = {
        core: [median(values) for values in zip(*found, strict=True)]
        for core, found in runs.items()
    }
    rows = [
        [name, *(f"{figures[core][place]:.2f}" for core in CORES), f"<= {bound}"]
        for place, (name, bound) in enumerate(AIMS.items())
    ]
    table = results.Table("", ["", *CORES.values(), "aim"], rows)
    results.save("cores", [table], figures)


def in_process(core: str) -> list[float]:
    """The figures of one core, in the order of `AIMS`."""
    done = subprocess.run(
        [sys.executable, Path(__file__), "--figures"],
        env={**os.environ, "TORCHPROF_HOOKS_CORE": core},
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def all_figures() -> list[float]:
    """Those of the core of this process."""
    linear, relu = (
        of_modules(compare_steps(chain_step(make, CHAIN), MODULES, TURNS), CHAIN)
        for make in (lambda: nn.Linear(8, 8), nn.ReLU)
    )
    ways = ("profile()", "profile(functions=True)", "profile(memory=True)")
    times = compare_steps(gpt2_step()[0], {"bare", *ways}, TURNS)
    return [
        linear["us_per_module"],
        relu["us_per_module"],
        linear["of_full_backward_hooks"],
        *(median(times[way]) / median(times["bare"]) for way in ways),
    ]


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "--figures" in sys.argv:
        print(json.dumps(all_figures()))
    else:
        main()
