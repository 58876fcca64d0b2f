"""Whether `profile(max_overhead=0.01)` keeps its promise, and what it is worth.

Targets: the loop takes at most 1.015 times as long as the bare one; the mean times of
modules are within 5 % of those that `profile()` finds, which looks at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

import results
import torch
from bench import Variant, compare, device, result_name, times_table
from models import Workload, gpt2_small, llama, lstm, resnet

from torchprof_hooks import profile
from torchprof_hooks.profiles.names import MODULE_PHASES, Phase
from torchprof_hooks.profiles.profile import Profile

BUDGET = 0.01
#: Steps in a turn, and seconds for the turns of a model, about.
STEPS = 100
SECONDS = 75
WORKLOADS: tuple[Callable[[str], Workload], ...] = (gpt2_small, resnet, lstm, llama)
#: Modules that take less of the time in a phase are not compared.
LEAST_SHARE = 0.01


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
    rounds = max(8, round(SECONDS / len(variants) / turn_seconds))
    times = compare(steps, variants, rounds)
    found = budgeted.profile
    off = deviations(found, full.profile)
    bare, limited, every = (median(values) for values in times.values())
    figures = {
        "slowdown": limited / bare,
        "slowdown_of_full": every / bare,
        "believed": found.overhead_ns / (found.wall_ns + found.unmeasured_ns),
        "share_measured": found.wall_ns / (found.wall_ns + found.unmeasured_ns),
        "steps_measured": found.steps,
        "median_deviation": median(off),
        "ninth_decile_of_deviations": quantiles(off, n=10)[-1],
        "largest_deviation": max(off),
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


def deviations(found: Profile, true: Profile) -> list[float]:
    """How far the mean times of modules in each phase are off, with inner calls."""
    mine = means(found, 0)
    known = means(true, LEAST_SHARE)
    return [abs(mine.get(key, 0) / mean - 1) for key, mean in known.items()]


def means(profile: Profile, least_share: float) -> dict[tuple[str, Phase], float]:
    """Nanoseconds per step of each module that takes such a share of a phase."""
    rows = [row for row in profile.corrected().rows() if row.kind == "module"]
    found = {}
    for phase in MODULE_PHASES:
        whole_ns = sum(row.phases[phase].self_ns for row in rows)
        for row in rows:
            time_ns = row.phases[phase].cumulative_ns
            if time_ns > least_share * whole_ns:
                found[row.name, phase] = time_ns / profile.steps
    return found


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
    ]
    rows = [
        [
            name,
            f"{f['slowdown']:.3f}",
            f"{1 + f['believed']:.3f}",
            f["steps_measured"],
            f"{100 * f['share_measured']:.1f} %",
            f"{100 * f['median_deviation']:.1f} %",
            f"{100 * f['ninth_decile_of_deviations']:.1f} %",
            f"{100 * f['largest_deviation']:.1f} %",
        ]
        for name, f in figures.items()
    ]
    note = (
        f"Slowdown: the loop with `profile(max_overhead={BUDGET})`, to the bare one. "
        "Means: of each module with inner calls, in forward and in backward, next to "
        f"those of `profile()` in the turns between; modules of {LEAST_SHARE:.0%} of "
        "the time or more."
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
