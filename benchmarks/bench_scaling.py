"""How the cost of `profile()` grows: with modules, nesting, threads, calls and steps.

Aims: the cost per module and step is that of a small model wherever there is more of
something; reports and files depend on the modules, not on the calls; memory stays flat
over 10^6 steps.
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import results
import torch
from bench import Variant, compare, rounds
from bench_memory import resident_bytes
from models import chain_step
from scaling_threads import compare_threads
from torch import Tensor, nn

from torchprof_hooks import Profile, profile

MODULES = (10, 100, 1000, 10_000)
DEPTHS = (1, 10, 50, 100, 200)
THREADS = (1, 2, 4, 8)
CALLS = (100, 1000, 10_000, 100_000, 1_000_000)
STEPS = 1_000_000

#: Modules in the model of which only the nesting changes.
NESTED_MODULES = 200
#: Modules of a model of which the calls are many.
CALLED_MODULES = 100
#: Module steps in a turn, about: small models take more steps.
MODULE_STEPS = 2000
ROUNDS = 20
#: How often a first step is taken.
FIRST_STEPS = 5
#: How often a report is made. The median counts.
REPORTS = 3
#: How often memory is looked at.
SAMPLES = 10

Step = Callable[[], object]
Figures = dict[str, dict[str, float]]


class Level(nn.Module):
    """One level of a tower: computes something, and calls the next one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        """As in a chain of nn.ReLU, one operation for each module."""
        return self.inner(torch.relu(x))


def towers_step(depth: int) -> Step:
    """Forward and backward of always as many modules, nested so deep."""

    def tower() -> nn.Module:
        inner: nn.Module = nn.ReLU()
        for _ in range(depth - 1):
            inner = Level(inner)
        return inner

    model = nn.Sequential(*(tower() for _ in range(NESTED_MODULES // depth)))
    return step_of(model)


def tree_step(modules: int) -> Step:
    """Forward and backward of about `modules` modules, ten in each container."""

    def tree(leaves: int) -> nn.Module:
        if leaves == 1:
            return nn.ReLU()
        return nn.Sequential(*(tree(leaves // 10) for _ in range(10)))

    return step_of(tree(modules))


def step_of(model: nn.Module) -> Step:
    x = torch.randn(4, 8, requires_grad=True)
    return lambda: model(x).sum().backward()


def cost(step: Step, modules: int) -> dict[str, float]:
    """Per module and step: what a step takes bare, what `profile()` adds to it, and
    what it adds to the first step, when all modules are new."""
    steps_in_turn = max(1, MODULE_STEPS // modules)
    step()
    bare_ns, first_ns = [], []
    for _ in range(rounds(FIRST_STEPS)):
        bare_ns.append(elapsed_ns(step))
        with profile():
            first_ns.append(elapsed_ns(step))
    known = profile()
    times = compare(
        lambda: [step() for _ in range(steps_in_turn)],
        [Variant("bare"), Variant("profile()", lambda: known)],
        ROUNDS,
    )
    bare, measured = (median(values) / steps_in_turn for values in times.values())
    return {
        "bare_us": bare / 1000 / modules,
        "added_us": (measured - bare) / 1000 / modules,
        "ratio": measured / bare,
        "added_in_first_step_us": (median(first_ns) - median(bare_ns)) / 1000 / modules,
    }


def elapsed_ns(work: Callable[[], object]) -> int:
    start_ns = perf_counter_ns()
    work()
    return perf_counter_ns() - start_ns


def report_cost(step: Step, steps: Sequence[int]) -> list[dict[str, float]]:
    """What becomes of a profile after so many steps: milliseconds and bytes."""
    found: list[dict[str, float]] = []
    prof, done = profile(), 0
    with tempfile.TemporaryDirectory() as directory:
        for count in steps:
            with prof:
                for _ in range(count - done):
                    step()
            done = count
            path = Path(directory) / "profile.json"
            found.append(report_times(prof, path))
    return found


def report_times(prof: Any, path: Path) -> dict[str, float]:
    done = prof.profile
    uses: dict[str, Callable[[], object]] = {
        "profile": lambda: prof.profile,
        "rows": done.rows,
        "tree": done.tree,
        "print_report": lambda: prof.print_report(file=io.StringIO()),
        "save": lambda: done.save(path),
        "load": lambda: Profile.load(path),
    }
    times = {
        f"{name}_ms": median(elapsed_ns(use) for _ in range(REPORTS)) / 1e6
        for name, use in uses.items()
    }
    return {**times, "file_bytes": path.stat().st_size}


def memory_over_steps() -> dict[str, list[float]]:
    """KiB more than after the first steps, by the number of steps since then.

    The model is about the cheapest that has a backward: 10^6 steps take a minute.
    """
    model, x = nn.ReLU(), torch.ones(1, requires_grad=True)

    def run(steps: int) -> None:
        for _ in range(steps):
            model(x).backward()

    each = rounds(STEPS) // SAMPLES
    with profile():
        run(each // 2)
        before = resident_bytes()
        grown = [0.0]
        for _ in range(SAMPLES):
            run(each)
            grown.append((resident_bytes() - before) / 1024)
    return {"steps": [each * i for i in range(SAMPLES + 1)], "grown_kib": grown}


def cost_table(title: str, header: str, figures: Figures) -> results.Table:
    headers = [header, "bare", "profile() adds", "ratio to bare", "... in first step"]
    rows = [
        [
            f"{int(count):,}".replace(",", " "),
            f"{found['bare_us']:.2f}",
            f"{found['added_us']:.2f}",
            f"{found['ratio']:.2f}",
            f"{found['added_in_first_step_us']:.0f}",
        ]
        for count, found in figures.items()
    ]
    return results.Table(f"{title}: us per module and step", headers, rows)


def threads_table(figures: Figures) -> results.Table:
    headers = ["threads", "bare", "profile()", "ratio to bare", "CPU time added"]
    rows = [
        [
            count,
            *(f"{found[name]:.2f}" for name in ("bare_us", "profile_us", "ratio")),
            f"{found['added_cpu_us']:.2f}",
        ]
        for count, found in figures.items()
    ]
    note = (
        "The time until all threads are done, over the module steps of all of them: "
        "Python runs one thread at a time."
    )
    title = "Threads, each with a model and a profile() of its own"
    return results.Table(f"{title}: us per module and step", headers, rows, [note])


def report_table(title: str, header: str, figures: Figures) -> results.Table:
    names = ["profile", "rows", "tree", "print_report", "save", "load"]
    headers = [header, *(f"{name}, ms" for name in names), "file, KiB"]
    rows = [
        [
            f"{int(count):,}".replace(",", " "),
            *(f"{found[f'{name}_ms']:.1f}" for name in names),
            f"{found['file_bytes'] / 1024:.0f}",
        ]
        for count, found in figures.items()
    ]
    return results.Table(title, headers, rows)


def memory_table(found: Mapping[str, Sequence[float]]) -> results.Table:
    rows = [
        [f"{steps:,}".replace(",", " "), f"{grown:.0f}"]
        for steps, grown in zip(found["steps"], found["grown_kib"], strict=True)
    ]
    title = "Resident memory over steps of one nn.ReLU with profile()"
    return results.Table(title, ["steps", "KiB more"], rows)


def main() -> None:
    torch.set_num_threads(1)
    sys.setrecursionlimit(10_000)  # any hook at all: 200 levels need 1000 frames
    cost(chain_step(nn.ReLU, 10), 10)  # what happens once in a process
    report_cost(chain_step(nn.ReLU, 10), [1])
    modules = {str(n): cost(chain_step(nn.ReLU, n), n) for n in MODULES}
    nesting = {str(d): cost(towers_step(d), NESTED_MODULES) for d in DEPTHS}
    threads = {str(n): compare_threads(n, rounds(ROUNDS)) for n in THREADS}
    calls = [n for n in CALLS if n <= rounds(CALLS[-1])]
    many_calls = report_cost(
        chain_step(nn.ReLU, CALLED_MODULES), [n // CALLED_MODULES for n in calls]
    )
    by_calls = dict(zip(map(str, calls), many_calls, strict=True))
    by_modules = {str(n): report_cost(tree_step(n), [2])[0] for n in MODULES}
    by_nesting = {str(d): report_cost(towers_step(d), [2])[0] for d in DEPTHS}
    memory = memory_over_steps()
    tables = [
        cost_table("Modules in a chain of nn.ReLU", "modules", modules),
        cost_table(f"Nesting of {NESTED_MODULES} modules", "depth", nesting),
        threads_table(threads),
        report_table(f"Calls of {CALLED_MODULES} modules", "calls", by_calls),
        report_table("Modules, ten in each container", "modules", by_modules),
        report_table(f"Nesting of {NESTED_MODULES} modules", "depth", by_nesting),
        memory_table(memory),
    ]
    figures = {
        "modules": modules,
        "nesting": nesting,
        "threads": threads,
        "report_by_calls": by_calls,
        "report_by_modules": by_modules,
        "report_by_nesting": by_nesting,
        "memory": memory,
    }
    results.save("scaling", tables, figures)


if __name__ == "__main__":
    main()
