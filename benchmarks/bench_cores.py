"""The two cores side by side: what each adds to programs, in turns.

Aims (of the native core): a TimerHook costs at most 1.15 of an empty pair of hooks;
`profile()` adds at most 4 us per module and step to a chain of nn.Linear, 3 to one of
nn.ReLU, 0.08 of what full backward hooks add; GPT-2 small (13 ms) takes at most 1.05 of
its time with every step measured, 1.25 with functions, 1.07 with memory; 8 threads pay
at most 1.5 of what one pays; 99 % of its backward is attributed, of a chain's 98 %.
Where torch is built for CUDA and no device is there, `profile()` adds at most 1.05 of
what it adds with a build for the CPU:

    python benchmarks/bench_cores.py [--cuda-build PYTHON]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import results
import torch
from bench import (
    Variant,
    compare,
    empty_backward_hooks,
    empty_forward_hooks,
    rounds,
)
from models import chain_step, gpt2_step
from scaling_threads import compare_threads
from torch import nn
from torch.overrides import TorchFunctionMode

from torchprof_hooks import Profile, profile
from torchprof_hooks.link_hooks import TimerHook
from torchprof_hooks.profiles.names import ENGINE_NAME

#: And what stands above their columns.
CORES = {"python": "core in Python", "native": "native core"}
#: The native core, with a torch that is built for CUDA.
CUDA_BUILD = "native, CUDA build"
#: Processes of each core, which take turns.
PROCESSES = 3
ROUNDS = 40
#: Steps of a chain in a turn, and of GPT-2 small.
STEPS = 10
GPT2_STEPS = 4
CHAIN = 100

Step = Callable[[], object]


class Aim(NamedTuple):
    """What is measured, and the most (or the least) that it is to be."""

    name: str
    bound: str


LINEAR = "profile(), us per module and step, chain of nn.Linear"
AIMS = (
    Aim("TimerHook, of an empty pair of hooks", "<= 1.15"),
    Aim(LINEAR, "<= 4"),
    Aim("profile(), us per module and step, chain of nn.ReLU", "<= 3"),
    Aim("profile(), of what full backward hooks add, nn.Linear", "<= 0.08"),
    Aim("GPT-2 small, every step measured", "<= 1.05"),
    Aim("... functions=True", "<= 1.25"),
    Aim("... an empty torch function mode, without us", ""),
    Aim("... memory=True", "<= 1.07"),
    Aim("8 threads, processor time added per call, of 1 thread", "<= 1.5"),
    Aim("... that of the bare step, of 1 thread", ""),
    Aim("... added, of what empty hooks add in 8 threads", ""),
    Aim("share of backward attributed, GPT-2 small, %", ">= 99"),
    Aim("share of backward attributed, chain of nn.ReLU, %", ">= 98"),
)


def main(cuda_build: str | None) -> None:
    """Measure, and save the table.

    cuda_build: a Python whose torch is built for CUDA, and otherwise like ours.
    """
    subjects = {core: (core, sys.executable) for core in CORES}
    if cuda_build:
        subjects[CUDA_BUILD] = ("native", cuda_build)
    found: dict[str, list[list[float]]] = {name: [] for name in subjects}
    for _ in range(rounds(PROCESSES * 20) // 20 or 1):
        for name, (core, python) in subjects.items():
            found[name].append(in_process(core, python))
    figures = {
        name: list(map(median, zip(*runs, strict=True))) for name, runs in found.items()
    }
    rows: list[list[results.Cell]] = [
        [aim.name, *(f"{figures[name][place]:.2f}" for name in subjects), aim.bound]
        for place, aim in enumerate(AIMS)
    ]
    if cuda_build:
        rows.append(row_of_builds(figures))
    names = [CORES.get(name, name) for name in subjects]
    table = results.Table("", ["", *names, "aim"], rows)
    results.save("cores", [table], figures)


def row_of_builds(figures: Mapping[str, Sequence[float]]) -> list[results.Cell]:
    """What `profile()` adds with a build for CUDA, of what it adds with the other."""
    place = [aim.name for aim in AIMS].index(LINEAR)
    ratio = figures[CUDA_BUILD][place] / figures["native"][place]
    return [f"{LINEAR}, of the CPU build", "", "", f"{ratio:.2f}", "<= 1.05"]


def in_process(core: str, python: str) -> list[float]:
    """The figures of one core, in the order of `AIMS`."""
    done = subprocess.run(
        [python, Path(__file__), "--figures"],
        env={**os.environ, "TORCHPROF_HOOKS_CORE": core},
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: list[float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def all_figures() -> list[float]:
    """Those of the core of this process."""
    return [*of_chains(), *of_gpt2(), *of_threads(), *attributed()]


def of_chains() -> list[float]:
    linear = per_module_ns(
        lambda: nn.Linear(8, 8),
        {
            "pair": empty_forward_hooks,
            "timer": TimerHook,
            "profile": profile,
            "full": empty_backward_hooks,
        },
    )
    relu = per_module_ns(nn.ReLU, {"profile": profile})
    return [
        (linear["bare"] + linear["timer"]) / (linear["bare"] + linear["pair"]),
        linear["profile"] / 1000,
        relu["profile"] / 1000,
        linear["profile"] / linear["full"],
    ]


def per_module_ns(
    make: Callable[[], nn.Module],
    enter: Mapping[str, Callable[[], AbstractContextManager[Any]]],
) -> dict[str, float]:
    """What a step takes for each module of a chain, bare, and what variants add."""
    step = chain_step(make, CHAIN)
    step()
    variants = [Variant("bare")]
    for name, make_it in enter.items():
        is_kept = make_it in (TimerHook, profile)
        variants.append(Variant(name, _again(make_it()) if is_kept else make_it))
    times = compare(lambda: [step() for _ in range(STEPS)], variants, ROUNDS)
    bare = median(times["bare"])
    added = {name: (median(t) - bare) / STEPS / CHAIN for name, t in times.items()}
    return {**added, "bare": bare / STEPS / CHAIN}


def _again(manager: Any) -> Callable[[], Any]:
    return lambda: manager


def of_gpt2() -> list[float]:
    step, _ = gpt2_step()
    step()
    ways: Sequence[Callable[[], AbstractContextManager[Any]]] = (
        _again(profile()),
        _again(profile(functions=True)),
        EmptyMode,
        _again(profile(memory=True)),
    )
    variants = [Variant("bare"), *(Variant(str(n), way) for n, way in enumerate(ways))]
    times = compare(lambda: [step() for _ in range(GPT2_STEPS)], variants, ROUNDS)
    bare = median(times["bare"])
    return [median(times[str(n)]) / bare for n in range(len(ways))]


class EmptyMode(TorchFunctionMode):
    """What it takes to be shown functions."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def of_threads() -> list[float]:
    one, eight = (compare_threads(count, rounds(20)) for count in (1, 8))
    return [
        eight["added_cpu_us"] / one["added_cpu_us"],
        eight["bare_cpu_us"] / one["bare_cpu_us"],
        eight["added_cpu_us"] / eight["hooks_added_cpu_us"],
    ]


def attributed() -> list[float]:
    return [
        share_of_backward(gpt2_step()[0]),
        share_of_backward(chain_step(nn.ReLU, CHAIN)),
    ]


def share_of_backward(step: Step) -> float:
    """In per cent: of the time of backward passes, what modules have, and the engine
    itself."""
    with profile() as prof:
        for _ in range(50):
            step()
    found: Profile = prof.profile
    attributed = of_all = 0
    for (path, phase), totals in found.cells.items():
        if phase == "backward":
            of_all += totals.self_ns
            is_module = found.modules[path[-1]].kind == "module"
            attributed += totals.self_ns * (is_module or path[-1] == ENGINE_NAME)
    return 100 * attributed / of_all


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", action="store_true", help="of this process alone")
    parser.add_argument("--cuda-build", metavar="PYTHON")
    options = parser.parse_args()
    if options.figures:
        print(json.dumps(all_figures()))
    else:
        main(options.cuda_build)
