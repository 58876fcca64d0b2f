"""Whether memory grows with the number of calls, or of steps.

Targets: 10^6 module calls after warm-up add less than 1 MiB to the process, and 10^6
steps with `profile()` less than 100 KiB. Warm-up is 150 000 calls: more than a
TimerHook's history holds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import results
import torch
from bench import rounds
from torch import nn

from torchprof_hooks import function_hooks, profile
from torchprof_hooks.link_hooks import TimerHook

PAGE_BYTES = 4096
MODULES = 10
#: Of so many calls, each is a step of its own.
STEPS = "profile(), a step for each call"
WARM_UP, CALLS = rounds(150_000), rounds(1_000_000)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def run(model: nn.Module, steps: int, backward: bool) -> None:
    x = torch.ones(1, requires_grad=True)
    for _ in range(steps):
        y = model(x)
        if backward:
            y.backward()


def growth_kib(
    enter: Callable[[], AbstractContextManager[Any]],
    backward: bool,
    modules: int = MODULES,
) -> int:
    layers = (nn.Softplus() for _ in range(modules - 1))
    model = nn.Sequential(*layers) if modules > 1 else nn.ReLU()
    with enter():
        run(model, WARM_UP // modules, backward)
        before = resident_bytes()
        run(model, CALLS // modules, backward)
        return (resident_bytes() - before) // 1024


def main() -> None:
    torch.set_num_threads(1)
    variants: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "bare": nullcontext,
        "TimerHook()": TimerHook,
        "TimerHook(backward=True)": lambda: TimerHook(backward=True),
        "profile()": profile,
        "profile(functions=True)": lambda: profile(functions=True),
        "function_hooks.TimerHook()": function_hooks.TimerHook,
    }
    figures = {
        name: {
            "forward_kib": growth_kib(enter, backward=False),
            "forward_and_backward_kib": growth_kib(enter, backward=True),
        }
        for name, enter in variants.items()
    }
    in_steps = growth_kib(profile, backward=True, modules=1)
    rows: list[list[results.Cell]] = [
        [name, *found.values()] for name, found in figures.items()
    ]
    rows.append([STEPS, "", in_steps])
    headers = ["", "forward only", "forward and backward"]
    title = "KiB more in memory after 10^6 module calls"
    table = results.Table(title, headers, rows)
    results.save("memory", [table], {"calls": figures, "steps_kib": in_steps})


if __name__ == "__main__":
    main()
