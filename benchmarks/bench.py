"""What the benchmarks share: variants of one workload, run in turns.

The machine drifts, so variants take turns in one process, and what counts are medians
and ratios of one run.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from statistics import median, quantiles
from time import perf_counter_ns
from typing import Any

import torch
from results import Table
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
)


@dataclass(frozen=True)
class Variant:
    """A way to run the workload: inside of what `enter` returns."""

    name: str
    enter: Callable[[], AbstractContextManager[Any]] = nullcontext


def rounds(count: int) -> int:
    """That many; or just enough to see that all runs, if BENCH_QUICK is set."""
    return max(2, count // 20) if os.environ.get("BENCH_QUICK") else count


@cache
def device() -> str:
    """Where workloads run: on a GPU if there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def result_name(name: str) -> str:
    """The results of a GPU have files of their own."""
    return name if device() == "cpu" else f"{name}-{device()}"


def wait() -> None:
    """Until the device is done."""
    if device() == "cuda":
        torch.cuda.synchronize()


_rounds = rounds  # for where `rounds` is a parameter


def compare(
    workload: Callable[[], object], variants: Sequence[Variant], rounds: int
) -> dict[str, list[int]]:
    """Nanoseconds of each run of the workload, by variant. Entering and leaving a
    variant is not timed, waiting for the device is; a first run of each is dropped.

    rounds: how often all take their turns; fewer with BENCH_QUICK.
    """
    times: dict[str, list[int]] = {variant.name: [] for variant in variants}
    for turn in range(_rounds(rounds) + 1):
        for variant in variants:
            elapsed_ns = run_once(workload, variant)
            if turn:
                times[variant.name].append(elapsed_ns)
    return times


def run_once(workload: Callable[[], object], variant: Variant) -> int:
    """Nanoseconds of one run. torch's warnings about hooks are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wait()
        with variant.enter():
            start_ns = perf_counter_ns()
            workload()
            wait()
            return perf_counter_ns() - start_ns


def times_table(
    title: str,
    times: Mapping[str, Sequence[int]],
    *,
    scale: float,
    unit: str,
    baseline: str,
    per: str = "module",
    count: int = 0,
) -> Table:
    """Medians, quartiles and ratios, and what each variant adds to the first.

    scale: what to multiply the nanoseconds of a run with.
    per, count: also divide what is added by that number of modules or functions, in
        microseconds.
    """
    first = median(next(iter(times.values())))
    rows = []
    for name, values in times.items():
        low, middle, high = (scale * value for value in quantiles(values, n=4))
        row = [name, f"{middle:.0f}", f"{low:.0f} - {high:.0f}"]
        row.append(f"{median(values) / median(times[baseline]):.3f}")
        added = median(values) - first
        row.append(f"{added / 1000 / count:.2f}" if count else f"{added * scale:.0f}")
        rows.append(row)
    added_header = f"us added per {per}" if count else f"{unit} added"
    headers = ["", unit, "quartiles", f"ratio to {baseline}", added_header]
    return Table(title, headers, rows)


@contextmanager
def empty_forward_hooks() -> Iterator[None]:
    """A global forward pre-hook and post-hook that do nothing."""
    handles = [
        register_module_forward_pre_hook(lambda module, args: None),
        register_module_forward_hook(lambda module, args, outputs: None),
    ]
    yield
    for handle in handles:
        handle.remove()


@contextmanager
def empty_backward_hooks() -> Iterator[None]:
    """A global full backward hook that does nothing."""
    handle = register_module_full_backward_hook(lambda module, inputs, outputs: None)
    yield
    handle.remove()
