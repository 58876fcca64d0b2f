"""How the cost of `profile()` grows: with modules, nesting, threads and calls.

Aims: the cost per module and step is that of a small model wherever there is more of
something; reports and files depend on the modules, not on the calls.
"""

from __future__ import annotations

import io
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from statistics import median
from threading import Barrier
from time import perf_counter_ns
from typing import Any, NamedTuple

import results
import torch
from bench import Variant, compare, rounds
from models import chain_step
from torch import Tensor, nn

from torchprof_hooks import Profile, profile

MODULES = (10, 100, 1000, 10_000)
DEPTHS = (1, 10, 50, 100, 200)
THREADS = (1, 2, 4, 8)
#: From ten steps on: a profile of one step has a start-up and no loop.
CALLS = (1000, 10_000, 100_000, 1_000_000)

#: Modules in the model of which only the nesting changes.
NESTED_MODULES = 200
#: Modules of a model of which the calls are many.
CALLED_MODULES = 100
#: Module steps in a turn, about: small models take more steps.
MODULE_STEPS = 2000
ROUNDS = 20
#: How often a report is made. The median counts.
REPORTS = 3
#: Modules of each thread's model, and the steps that it takes in a turn.
THREAD_MODULES, THREAD_STEPS = 100, 20

Step = Callable[[], object]
Enter = Callable[[], AbstractContextManager[Any]]
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


def step_of(model: nn.Module) -> Step:
    x = torch.randn(4, 8, requires_grad=True)
    return lambda: model(x).sum().backward()


def cost(step: Step, modules: int) -> dict[str, float]:
    """Per module and step: what a step takes bare, and what `profile()` adds to it."""
    steps_in_turn = max(1, MODULE_STEPS // modules)
    step()
    times = compare(
        lambda: [step() for _ in range(steps_in_turn)],
        [Variant("bare"), Variant("profile()", cache(profile))],
        ROUNDS,
    )
    bare, measured = (median(values) / steps_in_turn for values in times.values())
    return {
        "bare_us": bare / 1000 / modules,
        "added_us": (measured - bare) / 1000 / modules,
        "ratio": measured / bare,
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
        "print_report": lambda: prof.print_report(file=io.StringIO()),
        "save": lambda: done.save(path),
        "load": lambda: Profile.load(path),
    }
    times = {
        f"{name}_ms": median(elapsed_ns(use) for _ in range(REPORTS)) / 1e6
        for name, use in uses.items()
    }
    return {**times, "file_bytes": path.stat().st_size}


class Training(NamedTuple):
    """When a thread's training began and ended, and its time on the processor."""

    begin_ns: int
    end_ns: int
    cpu_ns: int


def compare_threads(threads: int, rounds: int) -> dict[str, float]:
    """Of that many threads, each with a model and a profile of its own: microseconds
    per module and step of any of them, bare and with `profile()`.

    Most of it is not our work: torch gives the interpreter's lock back in each
    operator, and whoever holds it longer in between waits for it more often.
    """
    steps = [chain_step(nn.ReLU, THREAD_MODULES) for _ in range(threads)]
    variants: dict[str, Enter] = {"bare": nullcontext, "profile": profile}
    wall: dict[str, list[float]] = {name: [] for name in variants}
    cpu: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, enter in variants.items():
            trainings = train_at_once(steps, enter)
            if turn:
                begin_ns = min(training.begin_ns for training in trainings)
                end_ns = max(training.end_ns for training in trainings)
                wall[name].append(per_module_us(end_ns - begin_ns, threads))
                cpu_ns = sum(training.cpu_ns for training in trainings)
                cpu[name].append(per_module_us(cpu_ns, threads))
    bare, measured = median(wall["bare"]), median(wall["profile"])
    pairs = zip(cpu["bare"], cpu["profile"], strict=True)
    return {
        "bare_us": bare,
        "profile_us": measured,
        "ratio": measured / bare,
        "added_cpu_us": median(longer - alone for alone, longer in pairs),
    }


def per_module_us(time_ns: int, threads: int) -> float:
    return time_ns / 1000 / (threads * THREAD_STEPS * THREAD_MODULES)


def train_at_once(steps: Sequence[Step], enter: Enter) -> list[Training]:
    """Each of the steps in a thread of its own. Entering, leaving and a first step,
    which finds out what there is, are not timed."""
    all_ready = Barrier(len(steps))

    def train(step: Step) -> Training:
        with enter():
            step()
            all_ready.wait()
            begin_ns, begin_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            for _ in range(THREAD_STEPS):
                step()
            cpu_ns = time.thread_time_ns() - begin_cpu_ns
            end_ns = time.perf_counter_ns()
            all_ready.wait()
        return Training(begin_ns, end_ns, cpu_ns)

    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(train, steps))


def cost_table(title: str, header: str, figures: Figures) -> results.Table:
    headers = [header, "bare", "profile() adds", "ratio to bare"]
    rows = [
        [
            f"{int(count):,}".replace(",", " "),
            f"{found['bare_us']:.2f}",
            f"{found['added_us']:.2f}",
            f"{found['ratio']:.2f}",
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


def report_table(figures: Figures) -> results.Table:
    names = ["print_report", "save", "load"]
    headers = ["calls", *(f"{name}, ms" for name in names), "file, KiB"]
    rows = [
        [
            f"{int(count):,}".replace(",", " "),
            *(f"{found[f'{name}_ms']:.1f}" for name in names),
            f"{found['file_bytes'] / 1024:.0f}",
        ]
        for count, found in figures.items()
    ]
    return results.Table(f"Calls of {CALLED_MODULES} modules", headers, rows)


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
    tables = [
        cost_table("Modules in a chain of nn.ReLU", "modules", modules),
        cost_table(f"Nesting of {NESTED_MODULES} modules", "depth", nesting),
        threads_table(threads),
        report_table(by_calls),
    ]
    figures = {
        "modules": modules,
        "nesting": nesting,
        "threads": threads,
        "report_by_calls": by_calls,
    }
    results.save("scaling", tables, figures)


if __name__ == "__main__":
    main()
