"""What `ProfilerHook` adds to a traced step, to a loop, and to the size of a trace.

Targets, on the small GPT-2: a traced step takes at most 1.15 times as long as with
`torch.profiler`, its options the same, and its export; a loop of which every 100th step
is traced at most 1.02 times as long as the bare one; a trace is at most 1.6 times as
large as that of `torch.profiler`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import results
import torch
from bench import Variant, compare, times_table
from bench import rounds as quick_rounds
from models import gpt2_step
from torch.profiler import ProfilerActivity, profile

from torchprof_hooks import ProfilerHook, TrainingSession

#: How far apart traced steps are in the loop.
EVERY = 100

Figures = dict[str, float]


def torch_profiled(step: Callable[[], None], path: Path) -> None:
    """A step with torch's profiler around it, exported."""
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True
    ) as profiler:
        step()
    profiler.export_chrome_trace(str(path))


def bench_step(
    step: Callable[[], None], directory: Path, rounds: int
) -> tuple[results.Table, Figures]:
    """A single step, bare and traced. The hook's is over twice: for training, when the
    next step can begin, and when the file is there."""
    names = ("bare", "torch.profiler", "ProfilerHook", "... until the file is there")
    times: dict[str, list[int]] = {name: [] for name in names}

    def add(name: str, start_ns: int) -> None:
        times[name].append(perf_counter_ns() - start_ns)

    hook = ProfilerHook(save_steps=2, output_dir=directory / "hook", show_memory=True)
    with TrainingSession([hook]) as session:
        for turn in range(quick_rounds(rounds)):
            start_ns = perf_counter_ns()
            step()
            add("bare", start_ns)
            start_ns = perf_counter_ns()
            torch_profiled(step, directory / "torch.json")
            add("torch.profiler", start_ns)
            session.run(step)  # not traced
            start_ns = perf_counter_ns()
            session.run(step)
            add("ProfilerHook", start_ns)
            while len(hook.paths) <= turn:
                time.sleep(0.0002)
            add("... until the file is there", start_ns)
    table = times_table(
        "A traced step of the small GPT-2, with data flow and memory",
        times,
        scale=1e-6,
        unit="ms",
        baseline="torch.profiler",
    )
    own = hook.paths[-1].stat().st_size
    torchs = (directory / "torch.json").stat().st_size
    figures = {
        "ratio_to_torch": median(times["ProfilerHook"])
        / median(times["torch.profiler"]),
        "size_to_torch": own / torchs,
    }
    note = (
        f"Size of the trace: {own} bytes, that of `torch.profiler` {torchs}: "
        f"{figures['size_to_torch']:.2f} times."
    )
    return replace(table, notes=[note]), figures


def bench_loop(
    title: str, step: Callable[[], None], directory: Path, rounds: int
) -> tuple[results.Table, Figures]:
    """A hundred steps, of which the last but one is traced, until the loop is over."""

    @contextmanager
    def bare() -> Iterator[None]:
        running.append(step)
        yield
        running.pop()

    @contextmanager
    def with_torch() -> Iterator[None]:
        due = iter(range(EVERY))

        def run() -> None:
            if next(due) == EVERY - 2:
                torch_profiled(step, directory / "torch.json")
            else:
                step()

        running.append(run)
        yield
        running.pop()

    @contextmanager
    def with_hook() -> Iterator[None]:
        hook = ProfilerHook(EVERY, None, directory)
        with TrainingSession([hook]) as session:
            session.run(step)  # not traced: the next to be is the hundredth
            session.run(step)
            running.append(lambda: session.run(step))
            yield
            running.pop()
        assert len(hook.paths) == 1

    running: list[Callable[[], object]] = []

    def loop() -> None:
        for _ in range(EVERY):
            running[-1]()

    times = compare(
        loop,
        [
            Variant("bare", bare),
            Variant("ProfilerHook", with_hook),
            Variant("torch.profiler", with_torch),
        ],
        rounds,
    )
    table = times_table(title, times, scale=1e-6, unit="ms", baseline="bare")
    unmeasured = median(times["bare"])
    return table, {name: median(v) / unmeasured for name, v in times.items()}


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        step, _ = gpt2_step()
        title = f"{EVERY} steps of the small GPT-2, one of them traced"
        found = {
            "step": bench_step(step, Path(directory), 30),
            "loop": bench_loop(title, step, Path(directory), 15),
        }
    results.save(
        "trace",
        [table for table, _ in found.values()],
        {name: figures for name, (_, figures) in found.items()},
    )


if __name__ == "__main__":
    main()
