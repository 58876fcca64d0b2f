"""What function hooks add to a training step, next to an empty torch-function mode with
an empty node pre-hook for each function, and next to torch.profiler.

Targets: a TimerHook adds at most 1.5 times what the empty hooks add, and the small
GPT-2 step takes no longer than with torch.profiler and its post-processing, seeing the
same or more functions; a memory hook adds less than 2 us per function to the timer's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter_ns
from typing import Any

import results
import torch
from bench import Variant, compare, times_table
from bench import rounds as quick_rounds
from models import gpt2_step
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity

from torchprof_hooks import profile
from torchprof_hooks.function_hooks import MemoryProfileHook, TimerHook

#: Steps in a turn.
STEPS = 5
EMPTY = "empty mode and node pre-hooks"

Figures = dict[str, float]


class EmptyHooks(TorchFunctionMode):
    """Sees every function, puts a hook in front of its node, and does nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if type(result) is torch.Tensor:
            node = result.grad_fn
            if node is not None:
                node.register_prehook(_do_nothing)
        return result


def _do_nothing(gradients: Any) -> None:
    return None


def chain_of_functions() -> Callable[[], None]:
    x = torch.randn(4, 8, requires_grad=True)

    def step() -> None:
        y = x
        for _ in range(100):
            y = torch.relu(y)
        y.sum().backward()

    return step


def functions_called(step: Callable[[], None]) -> int:
    """How many functions a step calls, in forward and in the optimizer."""
    with profile(functions=True) as prof:
        step()
    rows = prof.profile.rows("function")
    return sum(row.calls for row in rows if row.kind == "function")


def compare_hooks(
    title: str, step: Callable[[], None], rounds: int
) -> tuple[results.Table, Figures]:
    def steps() -> None:
        for _ in range(STEPS):
            step()

    for _ in range(4):
        steps()
    # Entered anew for every round: they know the functions by then.
    timer, memory = TimerHook(), MemoryProfileHook()
    modules, functions = profile(), profile(functions=True)
    times = compare(
        steps,
        [
            Variant("bare"),
            Variant(EMPTY, EmptyHooks),
            Variant("TimerHook", lambda: timer),
            Variant("MemoryProfileHook", lambda: memory),
            Variant("profile()", lambda: modules),
            Variant("profile(functions=True)", lambda: functions),
        ],
        rounds,
    )
    calls = functions_called(step)
    table = times_table(
        f"{title} ({calls} functions)",
        times,
        scale=1e-3 / STEPS,
        unit="us",
        baseline="bare",
        per="function",
        count=calls * STEPS,
    )
    figures = to_figures(times, calls)
    ratio = figures["timer_of_empty_hooks"]
    note = f"The TimerHook adds {ratio:.2f} of what the empty hooks add."
    return replace(table, notes=[note]), figures


def to_figures(times: Mapping[str, Sequence[int]], calls: int) -> Figures:
    bare, empty, timer, memory, functions = (
        median(times[name])
        for name in (
            "bare",
            EMPTY,
            "TimerHook",
            "MemoryProfileHook",
            "profile(functions=True)",
        )
    )
    return {
        "timer_of_empty_hooks": (timer - bare) / (empty - bare),
        "memory_more_than_timer_us": (memory - timer) / 1000 / STEPS / calls,
        "ratio": functions / bare,
    }


def timer_and_summary(steps: Callable[[], None]) -> int:
    hook = TimerHook()
    with hook:
        steps()
    return sum(sums["occurrence"] for sums in hook.summary().values())


def profile_and_rows(steps: Callable[[], None]) -> int:
    with profile(functions=True) as prof:
        steps()
    rows = prof.profile.rows("function")
    return sum(t.calls for row in rows for t in row.phases.values())


def torch_profiler_and_averages(steps: Callable[[], None]) -> int:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        steps()
    profiler.key_averages()
    # Operators that no other operator calls: those are what users' functions are.
    return sum(
        event.cpu_parent is None
        or not event.cpu_parent.name.startswith(("aten::", "autograd::"))
        for event in profiler.events() or ()
        if event.name.startswith("aten::")
    )


def compare_with_torch_profiler(
    step: Callable[[], None], rounds: int
) -> tuple[results.Table, Figures]:
    """From entering to the finished table, for a few steps."""

    def steps() -> None:
        for _ in range(STEPS):
            step()

    variants = [timer_and_summary, profile_and_rows, torch_profiler_and_averages]
    times: dict[str, list[int]] = {"bare": [], **{v.__name__: [] for v in variants}}
    seen: dict[str, int] = {"bare": 0}
    for _ in range(quick_rounds(rounds)):
        start_ns = perf_counter_ns()
        steps()
        times["bare"].append(perf_counter_ns() - start_ns)
        for variant in variants:
            start_ns = perf_counter_ns()
            seen[variant.__name__] = variant(steps)
            times[variant.__name__].append(perf_counter_ns() - start_ns)
    bare = median(times["bare"])
    figures = {name: median(values) / bare for name, values in times.items()}
    rows: list[list[str | int]] = [
        [
            name.replace("_", " "),
            f"{median(values) / STEPS / 1e6:.2f}",
            f"{figures[name]:.2f}",
            seen[name] // STEPS,
        ]
        for name, values in times.items()
    ]
    headers = ["", "ms per step", "ratio to bare", "calls seen per step"]
    title = "Training step of GPT-2 small, with everything up to the finished table"
    return results.Table(title, headers, rows), figures


def main() -> None:
    torch.set_num_threads(1)
    step, _ = gpt2_step()
    found = {
        "relu": compare_hooks(
            "Forward and backward of 100 x torch.relu", chain_of_functions(), 80
        ),
        "gpt2": compare_hooks("Training step of GPT-2 small", step, 60),
        "gpt2_with_table": compare_with_torch_profiler(step, 12),
    }
    results.save(
        "functions",
        [table for table, _ in found.values()],
        {name: figures for name, (_, figures) in found.items()},
    )


if __name__ == "__main__":
    main()
