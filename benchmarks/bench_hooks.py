"""What our hooks and `profile()` add to calls of modules, to functions and to steps.

Targets: a TimerHook costs at most 1.3 times an empty pair of hooks; `profile()` at most
9 us per module and step, at most 0.2 of what empty full backward hooks add, and at most
1.10 times the bare step of the small GPT-2. A function TimerHook adds at most 1.5 times
what an empty torch-function mode adds with an empty node pre-hook for each function; a
memory hook adds less than 2 us per function to that; and the small GPT-2 step takes no
longer with it and its table than with torch.profiler and its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from statistics import median
from time import perf_counter_ns
from typing import Any

import results
import torch
from bench import (
    Variant,
    compare,
    empty_backward_hooks,
    empty_forward_hooks,
    rounds,
    times_table,
)
from models import chain_step, gpt2_step
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity

from torchprof_hooks import function_hooks, profile
from torchprof_hooks.link_hooks import TimerHook

CALLS = 4096
#: Steps in a turn: training does not switch its profiler on and off at every step.
STEPS = 5
ROUNDS = 80
EMPTY_PAIR = "empty pre + post hook"
FULL_HOOKS = "empty full backward hooks"
EMPTY_MODE = "empty mode and node pre-hooks"
#: Rows of the table of modules, and of that of functions.
MODULES = ("bare", "empty forward hooks", "TimerHook", "profile()", FULL_HOOKS)
FUNCTIONS = (
    "bare",
    EMPTY_MODE,
    "function TimerHook",
    "MemoryProfileHook",
    "profile()",
    "profile(functions=True)",
)

Step = Callable[[], object]
Times = Mapping[str, Sequence[int]]
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


def of_calls() -> tuple[results.Table, dict[str, Figures]]:
    """Of the cheapest module there is, so that nothing hides the hooks."""
    module = nn.Identity()

    def calls() -> None:
        for _ in range(CALLS):
            module(1)

    variants = [
        Variant("no hook"),
        Variant(EMPTY_PAIR, empty_forward_hooks),
        Variant("TimerHook", cache(TimerHook)),
        Variant("TimerHook(backward=True)", cache(partial(TimerHook, backward=True))),
    ]
    times = compare(calls, variants, 60)
    title = "Forward: nanoseconds per call of nn.Identity"
    table = times_table(title, times, scale=1 / CALLS, unit="ns", baseline=EMPTY_PAIR)
    figures = {
        name: {
            "ns_per_call": median(values) / CALLS,
            "ratio_to_empty": median(values) / median(times[EMPTY_PAIR]),
        }
        for name, values in times.items()
    }
    return table, figures


def compare_steps(step: Step, names: Collection[str], turns: int = ROUNDS) -> Times:
    """A few steps with each of these. Ours are made once, entered anew for every turn,
    and know the modules by then."""
    variants = [
        Variant("bare"),
        Variant("empty forward hooks", empty_forward_hooks),
        Variant("TimerHook", cache(TimerHook)),
        Variant("profile()", cache(profile)),
        Variant(FULL_HOOKS, empty_backward_hooks),
        Variant(EMPTY_MODE, EmptyHooks),
        Variant("function TimerHook", cache(function_hooks.TimerHook)),
        Variant("MemoryProfileHook", cache(function_hooks.MemoryProfileHook)),
        Variant("profile(functions=True)", cache(partial(profile, functions=True))),
        Variant("profile(memory=True)", cache(partial(profile, memory=True))),
    ]

    def steps() -> None:
        for _ in range(STEPS):
            step()

    for _ in range(4):
        steps()
    return compare(steps, [each for each in variants if each.name in names], turns)


def steps_table(
    title: str, times: Times, names: Sequence[str], per: str, count: int
) -> results.Table:
    return times_table(
        title,
        {name: times[name] for name in names},
        scale=1e-3 / STEPS,
        unit="us",
        baseline="bare",
        per=per,
        count=count * STEPS,
    )


def of_modules(times: Times, modules: int) -> Figures:
    bare, profiled, full = (
        median(times[name]) for name in ("bare", "profile()", FULL_HOOKS)
    )
    return {
        "ratio": profiled / bare,
        "us_per_module": (profiled - bare) / 1000 / STEPS / modules,
        "of_full_backward_hooks": (profiled - bare) / (full - bare),
    }


def of_functions(times: Times, calls: int) -> Figures:
    bare, empty, timer, memory, _, functions = (
        median(times[name]) for name in FUNCTIONS
    )
    return {
        "timer_of_empty_hooks": (timer - bare) / (empty - bare),
        "memory_more_than_timer_us": (memory - timer) / 1000 / STEPS / calls,
        "ratio": functions / bare,
    }


def chain_of_functions() -> Step:
    x = torch.randn(4, 8, requires_grad=True)

    def step() -> None:
        y = x
        for _ in range(100):
            y = torch.relu(y)
        y.sum().backward()

    return step


def functions_called(step: Step) -> int:
    """How many functions a step calls, in forward and in the optimizer."""
    with profile(functions=True) as prof:
        step()
    rows = prof.profile.rows("function")
    return sum(row.calls for row in rows if row.kind == "function")


def timer_and_summary(steps: Step) -> None:
    with function_hooks.TimerHook() as hook:
        steps()
    hook.summary()


def profile_and_rows(steps: Step) -> None:
    with profile(functions=True) as prof:
        steps()
    prof.profile.rows("function")


def torch_profiler_and_averages(steps: Step) -> None:
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as profiler:
        steps()
    profiler.key_averages()


def with_tables(step: Step) -> tuple[results.Table, Figures]:
    """From entering to the finished table, for a few steps."""

    def steps() -> None:
        for _ in range(STEPS):
            step()

    ways: dict[str, Callable[[Step], object]] = {
        "bare": lambda steps: steps(),
        **{
            way.__name__: way
            for way in (
                timer_and_summary,
                profile_and_rows,
                torch_profiler_and_averages,
            )
        },
    }
    times: dict[str, list[int]] = {name: [] for name in ways}
    for _ in range(rounds(12)):
        for name, way in ways.items():
            start_ns = perf_counter_ns()
            way(steps)
            times[name].append(perf_counter_ns() - start_ns)
    bare = median(times["bare"])
    figures = {name: median(values) / bare for name, values in times.items()}
    rows = [
        [
            name.replace("_", " "),
            f"{median(values) / STEPS / 1e6:.2f}",
            f"{figures[name]:.2f}",
        ]
        for name, values in times.items()
    ]
    title = "Training step of GPT-2 small, with everything up to the finished table"
    return results.Table(title, ["", "ms per step", "ratio to bare"], rows), figures


def main() -> None:
    torch.set_num_threads(1)
    table, calls = of_calls()
    results.save("forward", [table], calls)

    step, modules = gpt2_step()
    gpt2 = compare_steps(step, {*MODULES, *FUNCTIONS})
    title = f"Training step of GPT-2 small ({modules} modules)"
    tables = [steps_table(title, gpt2, MODULES, "module", modules)]
    figures = {"gpt2": of_modules(gpt2, modules)}
    chains: dict[str, Callable[[], nn.Module]] = {
        "linear": lambda: nn.Linear(8, 8),
        "relu": nn.ReLU,
    }
    titles = {"linear": "nn.Linear(8, 8)", "relu": "nn.ReLU"}
    for name, make in chains.items():
        times = compare_steps(chain_step(make), MODULES)
        title = f"Forward and backward of 100 x {titles[name]}"
        tables.append(steps_table(title, times, MODULES, "module", 101))
        figures[name] = of_modules(times, 101)
    results.save("step", tables, figures)

    relu_step = chain_of_functions()
    relu = compare_steps(relu_step, FUNCTIONS)
    count, of_gpt2 = functions_called(relu_step), functions_called(step)
    title = f"Forward and backward of 100 x torch.relu ({count} functions)"
    tables = [steps_table(title, relu, FUNCTIONS, "function", count)]
    title = f"Training step of GPT-2 small ({of_gpt2} functions)"
    tables.append(steps_table(title, gpt2, FUNCTIONS, "function", of_gpt2))
    table, finished = with_tables(step)
    figures = {
        "relu": of_functions(relu, count),
        "gpt2": of_functions(gpt2, of_gpt2),
        "gpt2_with_table": finished,
    }
    results.save("functions", [*tables, table], figures)


if __name__ == "__main__":
    main()
