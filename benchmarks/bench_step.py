"""What `profile()` adds to a training step, next to full backward hooks.

Targets: at most 9 us per module and step, at most 0.2 of what empty full backward hooks
add, and at most 1.10 times the bare step of the small GPT-2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

import results
import torch
from bench import (
    Variant,
    compare,
    empty_backward_hooks,
    empty_forward_hooks,
    times_table,
)
from models import chain_step, gpt2_step
from torch import nn

from torchprof_hooks import profile
from torchprof_hooks.link_hooks import TimerHook

#: Steps in a turn: training does not switch its profiler on and off at every step.
STEPS = 5

Figures = dict[str, float]


def measure(
    title: str, step: Callable[[], None], modules: int, rounds: int
) -> tuple[results.Table, Figures]:
    def steps() -> None:
        for _ in range(STEPS):
            step()

    for _ in range(4):
        steps()
    # Entered anew for every round: they know the modules by then.
    shared, timer = profile(), TimerHook()
    times = compare(
        steps,
        [
            Variant("bare"),
            Variant("empty forward hooks", empty_forward_hooks),
            Variant("TimerHook", lambda: timer),
            Variant("profile()", lambda: shared),
            Variant("empty full backward hooks", empty_backward_hooks),
        ],
        rounds,
    )
    table = times_table(
        title,
        times,
        scale=1e-3 / STEPS,
        unit="us",
        baseline="bare",
        count=modules * STEPS,
    )
    return table, to_figures(times, modules)


def to_figures(times: Mapping[str, Sequence[int]], modules: int) -> Figures:
    bare, profiled, full = (
        median(times[name])
        for name in ("bare", "profile()", "empty full backward hooks")
    )
    return {
        "ratio": profiled / bare,
        "us_per_module": (profiled - bare) / 1000 / STEPS / modules,
        "of_full_backward_hooks": (profiled - bare) / (full - bare),
    }


def main() -> None:
    torch.set_num_threads(1)
    step, modules = gpt2_step()
    found = {
        "gpt2": measure(
            f"Training step of GPT-2 small ({modules} modules)", step, modules, 80
        ),
        "linear": measure(
            "Forward and backward of 100 x nn.Linear(8, 8)",
            chain_step(lambda: nn.Linear(8, 8)),
            101,
            80,
        ),
        "relu": measure(
            "Forward and backward of 100 x nn.ReLU", chain_step(nn.ReLU), 101, 80
        ),
    }
    results.save(
        "step",
        [table for table, _ in found.values()],
        {name: figures for name, (_, figures) in found.items()},
    )


if __name__ == "__main__":
    main()
