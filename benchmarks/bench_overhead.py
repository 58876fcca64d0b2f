"""What our profilers and other tools add to training steps: ratios to the bare step.

Target: ours cost less than every other tool that gives times of modules in forward and
backward. Tools take turns with the bare step, and a ratio is that of neighbours: of a
turn with the tool and the bare turn of the same round.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import results
import torch
from bench import (
    Variant,
    compare,
    device,
    empty_forward_hooks,
    result_name,
    rounds,
    run_once,
)
from models import WORKLOADS, Workload
from results import Table
from tools import PEERS, Step, Tool, inside, our_tools, short, versions

BARE = "bare"
HOOKS = "empty forward hooks"
#: In a group of tools; how many fit into its time.
FEWEST_ROUNDS, MOST_ROUNDS = 6, 60

NOTES = (
    "Medians of the ratios of turns to the bare turn of the same round, ± half of the "
    "distance between their quartiles. What tools do before and after the steps is not "
    "in their times. torchprof and DeepSpeed's profiler look at forwards only.",
)

#: By tool: ratio, quartiles and milliseconds; or why there are none.
Figures = dict[str, dict[str, Any]]


class Turns:
    """So many steps of a workload, run as one or another tool wants them."""

    def __init__(self, workload: Workload, steps: int) -> None:
        self._workload, self._steps = workload, steps
        self._step: Step = workload.step

    def __call__(self) -> None:
        for _ in range(self._steps):
            self._step()

    def variant(self, tool: Tool) -> Variant:
        return Variant(tool.name, partial(self._using, tool))

    @contextmanager
    def _using(self, tool: Tool) -> Iterator[None]:
        with tool.enter(self._workload) as self._step:
            yield
        if tool.dear:
            gc.collect()  # what it leaves behind: not in the turn of the next


def measure(workload: Workload) -> Figures:
    """All tools on one workload."""
    found: Figures = {}
    tools = [Tool(HOOKS, inside(empty_forward_hooks)), *our_tools(), *PEERS]
    cheap = [tool for tool in tools if not tool.dear]
    dear = [tool for tool in tools if tool.dear]
    measure_group(found, workload, cheap, turn_s=0.03, most_steps=20, seconds=18)
    measure_group(found, workload, dear, turn_s=0.01, most_steps=5, seconds=10)
    return {name: found[name] for name in (BARE, *(tool.name for tool in tools))}


def measure_group(
    found: Figures,
    workload: Workload,
    tools: Sequence[Tool],
    *,
    turn_s: float,
    most_steps: int,
    seconds: float,
) -> None:
    """Tools in turns with the bare step.

    turn_s, most_steps: how long a turn of bare steps is to take, about.
    seconds: how long all rounds are to take, about.
    """
    bare_s = min(trial(workload, _BARE_STEP, 1) for _ in range(3))
    steps = max(1, min(rounds(most_steps), round(turn_s / bare_s)))
    running, round_s = [_BARE_STEP], bare_s * steps
    for tool in tools:
        reason = tool.why_missing()
        if reason:
            found[tool.name] = {"missing": reason}
            continue
        try:
            trial(workload, tool, 1)
            round_s += trial(workload, tool, steps)
        except Exception as error:  # tools may fail in any way
            found[tool.name] = {"fails": short(error)}
        else:
            running.append(tool)
    count = max(FEWEST_ROUNDS, min(MOST_ROUNDS, int(seconds / round_s)))
    turns = Turns(workload, steps)
    times = compare(turns, [turns.variant(tool) for tool in running], count)
    for name, figures in to_figures(times, steps).items():
        found.setdefault(name, figures)  # the first group's bare step counts


_BARE_STEP = Tool(BARE, inside(nullcontext))


def trial(workload: Workload, tool: Tool, steps: int) -> float:
    """Seconds of a turn, with entering and leaving the tool."""
    start_s = perf_counter()
    turns = Turns(workload, steps)
    run_once(turns, turns.variant(tool))
    return perf_counter() - start_s


def to_figures(times: Mapping[str, Sequence[int]], steps: int) -> Figures:
    """Ratios to the bare turn of the same round; their medians."""
    found: Figures = {}
    for name, values in times.items():
        ratios = [ours / bare for ours, bare in zip(values, times[BARE], strict=True)]
        low, _, high = quantiles(ratios, n=4)
        found[name] = {
            "ratio": round(median(ratios), 4),
            "quartiles": [round(low, 4), round(high, 4)],
            "ms_per_step": round(median(values) / steps / 1e6, 3),
            "rounds": len(ratios),
            "steps_per_round": steps,
        }
    return found


@contextmanager
def quiet_stderr() -> Iterator[None]:
    """Torch writes there, from C++, each time that a profiler starts or stops."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def ratio_table(workloads: Mapping[str, Figures], versions: Mapping[str, str]) -> Table:
    bare = [f"{found[BARE]['ms_per_step']:.1f}" for found in workloads.values()]
    names = [name for name in next(iter(workloads.values())) if name != BARE]
    rows = [
        [name, *(cell(found[name]) for found in workloads.values())] for name in names
    ]
    title = "Time of a training step with a tool, as a ratio to the bare step"
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    notes = [*NOTES, *failures(workloads), f"Versions: {listed}."]
    return Table(title, ["", *workloads], [["bare step, ms", *bare], *rows], notes)


def cell(found: Mapping[str, Any]) -> str:
    """What was found of one tool on one workload."""
    if "ratio" not in found:
        return "fails" if "fails" in found else "not there"
    low, high = found["quartiles"]
    digits = 3 if found["ratio"] < 10 else 1
    return f"{found['ratio']:.{digits}f} ± {(high - low) / 2:.{digits}f}"


def failures(workloads: Mapping[str, Figures]) -> list[str]:
    """A sentence for each tool and reason."""
    found: dict[str, list[str]] = {}
    for workload, figures in workloads.items():
        for tool, figure in figures.items():
            for word in ("fails", "missing"):
                if word in figure:
                    reason = f"{tool} {word}: `{figure[word]}`"
                    found.setdefault(reason, []).append(workload)
    return [f"{reason} ({', '.join(where)})." for reason, where in found.items()]


def main() -> None:
    torch.set_num_threads(1)
    workloads: dict[str, Figures] = {}
    for make in WORKLOADS:
        workload = make(device())
        print(f"{workload.name} ...", flush=True)
        with quiet_stderr():
            workloads[workload.name] = measure(workload)
    table = ratio_table(workloads, versions())
    figures = {"workloads": workloads, "versions": versions()}
    results.save(result_name("overhead"), [table], figures)


if __name__ == "__main__":
    main()
