"""What `profile()` costs where several threads train at once, and what empty hooks do.

Most of either is not their own work: torch gives the interpreter's lock back in each
operator, and whoever holds it longer in between waits for it more often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from statistics import median
from threading import Barrier
from typing import Any, NamedTuple

from bench import empty_forward_hooks
from models import chain_step
from torch import nn

from torchprof_hooks import profile

#: Modules of each thread's model, and the steps that it takes in a turn.
MODULES, STEPS = 100, 20

Step = Callable[[], object]
Enter = Callable[[], AbstractContextManager[Any]]


class Training(NamedTuple):
    """When a thread's training began and ended, and its time on the processor."""

    begin_ns: int
    end_ns: int
    cpu_ns: int


def compare_threads(threads: int, rounds: int) -> dict[str, float]:
    """Of that many threads, each with a model and a profile of its own: microseconds
    per module and step of any of them, bare, with one pair of empty hooks on all
    modules, and with `profile()`."""
    steps = [chain_step(nn.ReLU, MODULES) for _ in range(threads)]
    variants: dict[str, tuple[Enter, Enter]] = {  # for all threads, for each of them
        "bare": (nullcontext, nullcontext),
        "hooks": (empty_forward_hooks, nullcontext),
        "profile": (nullcontext, profile),
    }
    wall: dict[str, list[float]] = {name: [] for name in variants}
    cpu: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, (around_all, around_each) in variants.items():
            with around_all():
                trainings = train_at_once(steps, around_each)
            if turn:
                begin_ns = min(training.begin_ns for training in trainings)
                end_ns = max(training.end_ns for training in trainings)
                wall[name].append(per_module_us(end_ns - begin_ns, threads))
                cpu_ns = sum(training.cpu_ns for training in trainings)
                cpu[name].append(per_module_us(cpu_ns, threads))
    bare, measured = median(wall["bare"]), median(wall["profile"])
    return {
        "bare_us": bare,
        "profile_us": measured,
        "added_us": measured - bare,
        "ratio": measured / bare,
        "bare_cpu_us": median(cpu["bare"]),
        "added_cpu_us": added(cpu, "profile"),
        "hooks_added_cpu_us": added(cpu, "hooks"),
    }


def added(times: dict[str, list[float]], name: str) -> float:
    """By how much it is longer than the bare one of the same round, in the median."""
    pairs = zip(times["bare"], times[name], strict=True)
    return median(longer - bare for bare, longer in pairs)


def per_module_us(time_ns: int, threads: int) -> float:
    return time_ns / 1000 / (threads * STEPS * MODULES)


def train_at_once(steps: Sequence[Step], enter: Enter) -> list[Training]:
    """Each of the steps in a thread of its own. Entering, leaving and a first step,
    which finds out what there is, are not timed."""
    all_ready = Barrier(len(steps))

    def train(step: Step) -> Training:
        with enter():
            step()
            all_ready.wait()
            begin_ns, begin_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
            for _ in range(STEPS):
                step()
            cpu_ns = time.thread_time_ns() - begin_cpu_ns
            end_ns = time.perf_counter_ns()
            all_ready.wait()
        return Training(begin_ns, end_ns, cpu_ns)

    with ThreadPoolExecutor(len(steps)) as pool:
        return list(pool.map(train, steps))
