"""What it costs to be there: entering and leaving a hook, importing the package, and a
module call when no hook is active.

Targets: enter and leave under 50 us; importing adds less than 30 ms to importing torch;
without an active hook a call costs what it costs without the package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import results
from bench import rounds

from torchprof_hooks import LinkHook, profile
from torchprof_hooks.link_hooks import TimerHook

ENTER_ROUNDS, IMPORT_ROUNDS = 300, rounds(15)

IMPORT = """
import sys
sys.path.insert(0, {root!r})  # not through the finder of an editable install
import time, torch
start = time.perf_counter()
import torchprof_hooks
print((time.perf_counter() - start) * 1e3)
"""

FIRST_USE = """
import sys
sys.path.insert(0, {root!r})
import time, torch
start = time.perf_counter()
import torchprof_hooks
with torchprof_hooks.profile():
    pass
print((time.perf_counter() - start) * 1e3)
"""

CALL = """
import time, torch{more}
module = torch.nn.Identity()
def rounds():
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(20_000):
            module(1)
        yield (time.perf_counter() - start) / 20_000 * 1e9
print(sorted(rounds())[25])
"""


def enter_and_leave_us(hook: AbstractContextManager[Any]) -> float:
    times = []
    for _ in range(ENTER_ROUNDS):
        start_ns = perf_counter_ns()
        with hook:
            pass
        times.append((perf_counter_ns() - start_ns) / 1000)
    return median(times)


def in_a_fresh_process(code: str) -> float:
    """What it prints. The package is compiled to bytecode, as an installed one is."""
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", code]
    return float(subprocess.check_output(command, text=True, env=kept))


def import_ms(template: str) -> float:
    root = str(Path(__file__).parent.parent)
    code = template.format(root=root)
    return median(in_a_fresh_process(code) for _ in range(IMPORT_ROUNDS))


def interleaved(codes: list[str]) -> list[float]:
    rounds = [[in_a_fresh_process(c) for c in codes] for _ in range(IMPORT_ROUNDS)]
    return [median(times) for times in zip(*rounds, strict=True)]


def main() -> None:
    hooks: dict[str, Callable[[], AbstractContextManager[Any]]] = {
        "LinkHook": LinkHook,
        "TimerHook": TimerHook,
        "profile()": profile,
    }
    enter_us = {name: enter_and_leave_us(make()) for name, make in hooks.items()}
    without, inactive = interleaved(
        [CALL.format(more=""), CALL.format(more=", torchprof_hooks")]
    )
    figures = {
        "enter_us": enter_us,
        "import_ms": import_ms(IMPORT),
        "first_use_ms": import_ms(FIRST_USE),
        "call_without_ns": without,
        "call_inactive_ns": inactive,
    }
    rows = [
        *([f"enter and leave {name}", f"{us:.1f} us"] for name, us in enter_us.items()),
        ["import, after torch", f"{figures['import_ms']:.1f} ms"],
        ["... and first profile()", f"{figures['first_use_ms']:.1f} ms"],
        ["module call without the package", f"{without:.0f} ns"],
        ["module call, no hook active", f"{inactive:.0f} ns"],
    ]
    table = results.Table("Costs of being there", ["", "time"], rows)
    results.save("startup", [table], figures)


if __name__ == "__main__":
    main()
