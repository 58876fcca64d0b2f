"""What `profile()` adds to a training step, next to full backward hooks.

Targets: at most 9 us per module and step, at most 0.2 of what empty full backward hooks
add, and at most 1.10 times the bare step of the small GPT-2.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from bench import (
    Variant,
    compare,
    empty_backward_hooks,
    empty_forward_hooks,
    machine,
    report,
)
from models import chain_step, gpt2_step
from torch import nn

from torchprof_hooks import profile
from torchprof_hooks.link_hooks import TimerHook

#: Steps in a turn: training does not switch its profiler on and off at every step.
STEPS = 5


def measure(title: str, step: Callable[[], None], modules: int, rounds: int) -> None:
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
    report(
        title,
        times,
        scale=1e-3 / STEPS,
        unit="us",
        baseline="bare",
        count=modules * STEPS,
    )


def main() -> None:
    torch.set_num_threads(1)
    print(machine())
    step, modules = gpt2_step()
    measure(f"Training step of GPT-2 small ({modules} modules)", step, modules, 80)
    measure(
        "Forward and backward of 100 x nn.Linear(8, 8)",
        chain_step(lambda: nn.Linear(8, 8)),
        101,
        80,
    )
    measure("Forward and backward of 100 x nn.ReLU", chain_step(nn.ReLU), 101, 80)


if __name__ == "__main__":
    main()
