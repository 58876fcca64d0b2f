"""Whether memory grows with the number of calls.

Target: 10^6 module calls after warm-up add less than 1 MiB to the process. Warm-up is
150 000 calls: more than a TimerHook's history holds.
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
WARM_UP, CALLS = rounds(150_000), rounds(1_000_000)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def run(model: nn.Module, calls: int, backward: bool) -> None:
    x = torch.ones(1, requires_grad=True)
    for _ in range(calls // MODULES):
        y = model(x)
        if backward:
            y.backward()


def growth_kib(enter: Callable[[], AbstractContextManager[Any]], backward: bool) -> int:
    model = nn.Sequential(*(nn.Softplus() for _ in range(MODULES - 1)))
    with enter():
        run(model, WARM_UP, backward)
        before = resident_bytes()
        run(model, CALLS, backward)
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
    rows: list[list[str | int]] = [
        [name, *found.values()] for name, found in figures.items()
    ]
    headers = ["", "forward only", "forward and backward"]
    title = "KiB more in memory after 10^6 module calls"
    results.save("memory", [results.Table(title, headers, rows)], figures)


if __name__ == "__main__":
    main()
