"""What is left of the cost where one step of a hundred is measured.

Turns of bare steps and of steps of one profile that goes on. Each turn of the profile
has as many measured steps.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Final

import results
import torch
from bench import Variant, compare, device, result_name, rounds
from bench_overhead import BARE, Figures, cell, to_figures
from models import Workload, gpt2_small, resnet
from results import Cell, Table

from torchprof_hooks import profile

EVERY, STEPS = 100, 1
NAME: Final = f"profile(every={EVERY}, steps={STEPS})"
ROUNDS: Final = 12


def measure(workload: Workload) -> Figures:
    """The ratio to bare steps."""
    steps = rounds(EVERY)

    def turn() -> None:
        for _ in range(steps):
            workload.step()

    around: dict[str, AbstractContextManager[Any]] = {
        BARE: nullcontext(),
        NAME: profile(every=EVERY, steps=STEPS),
    }
    variants = [Variant(name, partial(_same, each)) for name, each in around.items()]
    return to_figures(compare(turn, variants, ROUNDS), steps)


def _same(around: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    return around


def main() -> None:
    torch.set_num_threads(1)
    figures: dict[str, Figures] = {}
    rows: list[list[Cell]] = []
    for make in (gpt2_small, resnet):
        workload = make(device())
        found = figures[workload.name] = measure(workload)
        bare_ms = f"{found[BARE]['ms_per_step']:.1f}"
        rows.append([workload.name, bare_ms, cell(found[NAME])])
    notes = [f"{ROUNDS} rounds of {rounds(EVERY)} steps each, in turns."]
    headers = ["", "bare step, ms", "ratio to bare"]
    table = Table(f"A loop with {NAME}", headers, rows, notes)
    results.save(result_name("some_steps"), [table], figures)


if __name__ == "__main__":
    main()
