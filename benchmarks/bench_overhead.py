"""What our profilers and other tools add to training steps: as a ratio to the bare
step, and in microseconds per module call.

Target: ours cost less than every other tool that gives times of modules in forward and
backward. Tools take turns with the bare step, and a ratio is that of neighbours: of a
turn with the tool and the bare turn of the same round.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

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
from page.overhead_tables import BARE, Figures, added_table, ratio_table
from tools import ours, peers
from tools.ours import inside
from tools.peers import PEERS, Step, Tool, short

HOOKS = "empty forward hooks"
#: In a group of tools; how many fit into its time.
FEWEST_ROUNDS, MOST_ROUNDS = 6, 60
CHAINER = Path(sys.prefix) / "chainer" / "bin" / "python"
CHAINER_ROUNDS = 60


class Turns:
    """So many steps of a workload, run as one or another tool wants them."""

    def __init__(self, workload: Workload, steps: int) -> None:
        self._workload, self._steps = workload, steps
        self._step: Step = workload.step

    def __call__(self) -> None:
        for _ in range(self._steps):
            self._step()

    def variant(self, tool: Tool) -> Variant:
        return Variant(tool.name, partial(self._using, tool), tool.whole)

    @contextmanager
    def _using(self, tool: Tool) -> Iterator[None]:
        with tool.enter(self._workload) as self._step:
            yield
        if tool.dear:
            gc.collect()  # what it leaves behind: not in the turn of the next


def measure(workload: Workload) -> Figures:
    """All tools on one workload."""
    found: Figures = {}
    tools = [Tool(HOOKS, inside(empty_forward_hooks)), *ours.of_every_step(), *PEERS]
    cheap = [tool for tool in tools if not tool.dear]
    dear = [tool for tool in tools if tool.dear]
    measure_group(found, workload, cheap, turn_s=0.03, most_steps=20, seconds=18)
    measure_group(found, workload, dear, turn_s=0.01, most_steps=5, seconds=10)
    # Long turns: the steps that are looked into are few.
    measure_group(
        found, workload, ours.of_some_steps(), turn_s=1, most_steps=100, seconds=28
    )
    return {name: found[name] for name in sorted(found, key=place_in_tables)}


def place_in_tables(name: str) -> int:
    """What is no tool comes first, then ours, then the peers."""
    if name in (BARE, HOOKS):
        return 0
    return 1 if name.startswith("torchprof_hooks") else 2


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
    for name, figures in to_figures(times, steps, workload.modules).items():
        found.setdefault(name, figures)  # the first group's bare step counts


_BARE_STEP = Tool(BARE, inside(nullcontext))


def trial(workload: Workload, tool: Tool, steps: int) -> float:
    """Seconds of a turn, with entering and leaving the tool."""
    start_s = perf_counter()
    turns = Turns(workload, steps)
    run_once(turns, turns.variant(tool))
    return perf_counter() - start_s


def to_figures(times: Mapping[str, Sequence[int]], steps: int, modules: int) -> Figures:
    """Ratios and differences to the bare turn of the same round; their medians."""
    found: Figures = {}
    for name, values in times.items():
        pairs = list(zip(values, times[BARE], strict=True))
        ratios = [value / bare for value, bare in pairs]
        added_us = median(value - bare for value, bare in pairs) / 1000
        low, _, high = quantiles(ratios, n=4)
        found[name] = {
            "ratio": round(median(ratios), 4),
            "quartiles": [round(low, 4), round(high, 4)],
            "us_per_module": round(added_us / steps / modules, 3),
            "ms_per_step": round(median(values) / steps / 1e6, 3),
            "rounds": len(pairs),
            "steps_per_round": steps,
        }
    return found


def measure_chainer() -> tuple[Figures, dict[str, str]]:
    """Chainer's own hooks on the same chain of layers in Chainer; and its versions."""
    script = Path(__file__).parent / "tools" / "chainer_hooks.py"
    command = [str(CHAINER), str(script), str(rounds(CHAINER_ROUNDS))]
    try:
        output = subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        return {"Chainer TimerHook": {"missing": short(error)}}, {}
    content = json.loads(output)
    found = to_figures(content["times"], 1, content["modules"])
    del found[BARE]
    return found, content["versions"]


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


def main() -> None:
    torch.set_num_threads(1)
    workloads: dict[str, Figures] = {}
    modules = []
    for make in WORKLOADS:
        workload = make(device())
        print(f"{workload.name} ...", flush=True)
        with quiet_stderr():
            workloads[workload.name] = measure(workload)
        modules.append(workload.modules)
    found, versions = measure_chainer()
    next(iter(workloads.values())).update(found)
    versions = peers.versions() | versions
    name = result_name("overhead")
    tables = [ratio_table(workloads, versions), added_table(workloads, modules)]
    figures = {"workloads": workloads, "versions": versions}
    results.save(name, tables, figures)


if __name__ == "__main__":
    main()
