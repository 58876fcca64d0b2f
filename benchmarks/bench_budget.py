"""Whether `profile(max_overhead=0.01)` keeps its promise, and what it is worth.

Targets: the loop takes at most 1.015 times as long as the bare one; the mean times of
modules are within 5 % of those that `profile()` finds, which looks at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median, quantiles
from typing import Any, NamedTuple

import results
import torch
from bench import (
    Variant,
    compare,
    device,
    error_of_median,
    ratios,
    result_name,
    times_table,
)
from models import Workload, gpt2_small, llama, lstm, resnet

from torchprof_hooks import profile
from torchprof_hooks.profile_type import Profile
from torchprof_hooks.profiles.names import MODULE_PHASES, Phase

BUDGET = 0.01
#: Steps in a turn, and seconds for the turns of a model, about: the shorter turns are,
#: the more alike is the machine in those that are compared.
STEPS = 10
SECONDS = 200
#: Turns that are looked at together: some have no measured steps at all.
TOGETHER = 10
WORKLOADS: tuple[Callable[[str], Workload], ...] = (gpt2_small, resnet, lstm, llama)
#: Modules that take less of the time in a phase are not compared.
LEAST_SHARE = 0.01


class Deviation(NamedTuple):
    """Of the mean of a module's calls in a phase, and of that of all calls but the
    longest: the machine stalls for milliseconds now and then."""

    of_all: float
    of_all_but_longest: float


def measure(workload: Workload) -> tuple[results.Table, dict[str, Any]]:
    """Turns of the bare loop, the budgeted and the full measurement."""

    def steps() -> None:
        for _ in range(STEPS):
            workload.step()

    budgeted, full = profile(max_overhead=BUDGET), profile()
    variants = [
        Variant("bare"),
        Variant(f"profile(max_overhead={BUDGET})", lambda: budgeted),
        Variant("profile()", lambda: full),
    ]
    turn_seconds = median(compare(steps, variants[:1], 3)["bare"]) / 1e9
    rounds = max(8 * TOGETHER, round(SECONDS / len(variants) / turn_seconds))
    times = compare(steps, variants, rounds)
    found = budgeted.profile
    deviating = deviations(found, full.profile)
    off = [deviation.of_all for deviation in deviating]
    bare, limited, every = times
    figures = {
        "slowdown": median(slowdowns := ratios(times, limited, bare, TOGETHER)),
        "error_of_slowdown": error_of_median(slowdowns),
        "slowdown_of_full": median(ratios(times, every, bare, TOGETHER)),
        "believed": found.overhead_ns / (found.wall_ns + found.unmeasured_ns),
        "share_measured": found.wall_ns / (found.wall_ns + found.unmeasured_ns),
        "steps_measured": found.steps,
        "median_deviation": median(off),
        "ninth_decile_of_deviations": quantiles(off, n=10)[-1],
        "largest_deviation": max(off),
        "largest_without_longest_calls": max(
            deviation.of_all_but_longest for deviation in deviating
        ),
        "compared": len(off),
    }
    table = times_table(
        f"Training step of {workload.name}",
        times,
        scale=1e-3 / STEPS,
        unit="us",
        baseline="bare",
    )
    return table, figures


def deviations(found: Profile, true: Profile) -> list[Deviation]:
    """How far the means of modules in each phase are off."""
    mine = dict(means(found, 0))
    return [
        Deviation(*(abs(a / b - 1) for a, b in zip(mine[key], known, strict=True)))
        for key, known in means(true, LEAST_SHARE)
    ]


def means(
    profile: Profile, least_share: float
) -> Iterator[tuple[tuple[str, Phase], tuple[float, float]]]:
    """Mean nanoseconds of the calls of each module, with inner calls, that takes such a
    share of a phase: of all calls, and of all but the longest."""
    rows = [row for row in profile.corrected().rows() if row.kind == "module"]
    for phase in MODULE_PHASES:
        whole_ns = sum(row.phases[phase].self_ns for row in rows)
        for row in rows:
            totals = row.phases[phase]
            time_ns, calls = totals.cumulative_ns, totals.calls
            if time_ns > least_share * whole_ns:
                rest_ns = (time_ns - totals.max_ns) / max(calls - 1, 1)
                yield (row.name, phase), (time_ns / calls, rest_ns)


def summary(figures: dict[str, dict[str, Any]]) -> results.Table:
    """One line for each model."""
    headers = [
        "",
        "slowdown",
        "believed",
        "steps measured",
        "of the time",
        "means off, median",
        "9 of 10 below",
        "largest",
        "largest without longest calls",
    ]
    rows = [
        [
            name,
            f"{f['slowdown']:.3f} +- {f['error_of_slowdown']:.3f}",
            f"{1 + f['believed']:.3f}",
            f["steps_measured"],
            f"{100 * f['share_measured']:.1f} %",
            f"{100 * f['median_deviation']:.1f} %",
            f"{100 * f['ninth_decile_of_deviations']:.1f} %",
            f"{100 * f['largest_deviation']:.1f} %",
            f"{100 * f['largest_without_longest_calls']:.1f} %",
        ]
        for name, f in figures.items()
    ]
    note = (
        f"Slowdown: the loop with `profile(max_overhead={BUDGET})`, to the bare one in "
        f"turns next to it: {TOGETHER * STEPS} steps together, in the median, with its "
        "standard error. "
        "Means: of each module with inner calls, in forward and in backward, next to "
        f"those of `profile()` in the turns between; modules of {LEAST_SHARE:.0%} of "
        "the time or more. The last column leaves out the longest call of each, on "
        "both sides: a machine that is shared stalls for milliseconds now and then."
    )
    return results.Table("A budget of 1 %", headers, rows, [note])


def main() -> None:
    torch.set_num_threads(1)
    tables, figures = [], {}
    for make in WORKLOADS:
        workload = make(device())
        table, figures[workload.name] = measure(workload)
        tables.append(table)
    results.save(result_name("budget"), [summary(figures), *tables], figures)


if __name__ == "__main__":
    main()
