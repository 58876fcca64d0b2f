"""What measuring costs where the model is compiled: steps with `profile()` and without,
in turns, by the time of the thread; and what marks on kernels cost once.

Aims: at most 1.02 of the compiled step of the small GPT-2; 1 us a kernel call; 200 ms
once for 100 kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from statistics import median
from time import perf_counter_ns, thread_time_ns

import results
import torch
from bench import Variant, rounds
from models import gpt2_small
from results import Cell, Table
from torch._inductor.codecache import PyCodeCache

from torchprof_hooks import profile
from torchprof_hooks.instruments.compiled.observer import _Parts, marks
from torchprof_hooks.instruments.compiled.wrapper import WrapperFunction, functions_of

STEPS, ROUNDS, TRIES = 10, 60, 300


def us_of_marks(functions: Sequence[WrapperFunction]) -> float:
    """What is done at the end of a kernel, and once for its function: the least of
    many."""
    least_ns = [inf] * len(functions)
    with profile():
        (observer,) = marks.users_here()
        for _ in range(TRIES):
            for place, function in enumerate(functions):
                begin_ns = perf_counter_ns()
                parts = _Parts(observer, function)
                for number in range(-1, len(function.kernels)):
                    parts.mark(number)
                parts.end()
                took_ns = perf_counter_ns() - begin_ns
                least_ns[place] = min(least_ns[place], took_ns)
    return sum(least_ns) / sum(len(each.kernels) for each in functions) / 1e3


def main() -> None:
    torch.set_num_threads(1)
    workload = gpt2_small()
    workload.model.compile()

    def turn() -> None:
        for _ in range(STEPS):
            workload.step()

    with profile():
        workload.step()
    variants = [Variant("bare"), Variant("again"), Variant("profile()", profile)]
    times: dict[str, list[int]] = {each.name: [] for each in variants}
    for _ in range(rounds(ROUNDS)):
        for each in variants:
            with each.enter():
                workload.step()  # a profile finds the places of kernels once
                begin_ns = thread_time_ns()
                turn()
                times[each.name].append(thread_time_ns() - begin_ns)
    bare_ns = median(times["bare"])

    def ratio(name: str) -> float:
        pairs = zip(times[name], times["bare"], strict=True)
        return median(one / other for one, other in pairs)

    begin_ns = perf_counter_ns()
    met = [
        function
        for module in PyCodeCache.modules
        for function in functions_of(module, lambda *_: None)
    ]
    once_ns = perf_counter_ns() - begin_ns
    kernels = sum(len(each.kernels) for each in met)
    more_ns = (ratio("profile()") - 1) * bare_ns / STEPS
    assert not marks.reasons()
    figures = {
        "step_ms": bare_ns / STEPS / 1e6,
        "noise": ratio("again"),
        "ratio": ratio("profile()"),
        "us_per_kernel": us_of_marks(met),
        "us_of_profile_per_kernel": more_ns / kernels / 1e3,
        "once_ms_of_100_kernels": once_ns / kernels / 1e4,
    }
    rows: list[list[Cell]] = [
        ["bare step, ms", f"{figures['step_ms']:.1f}"],
        ["kernel calls", kernels],
        ["ratio of bare steps to bare steps", f"{figures['noise']:.3f}"],
        ["ratio with profile()", f"{figures['ratio']:.3f}"],
        ["us per kernel call", f"{figures['us_per_kernel']:.2f}"],
        ["the same, of all of profile()", f"{figures['us_of_profile_per_kernel']:.1f}"],
        ["ms once, for 100 kernels", f"{figures['once_ms_of_100_kernels']:.0f}"],
    ]
    notes = [f"{rounds(ROUNDS)} rounds of {STEPS} steps in turns; the thread's time."]
    title = "The small GPT-2, compiled"
    results.save("compiled", [Table(title, ["", "measured"], rows, notes)], figures)


if __name__ == "__main__":
    main()
