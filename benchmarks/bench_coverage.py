"""How much of the time of forward and backward is booked on somebody.

Target: at least 98 % of the wall time of each on modules and, in backward, on the
autograd engine, which has a row of its own.
"""

from __future__ import annotations

import warnings
from collections import Counter
from statistics import median
from time import perf_counter_ns

import torch
from bench import device, result_name, rounds
from models import WORKLOADS, Workload
from results import Cell, Table, save

from torchprof_hooks import Profile, profile
from torchprof_hooks.profiler import Profiler
from torchprof_hooks.profiles.names import ENGINE_NAME

STEPS = 5
ROUNDS = 15

#: Phases of modules by the call that they are a part of.
PART_OF = {"forward": "forward", "backward": "backward", "recompute": "backward"}

NOTES = (
    "Shares of the wall time of forward (the model and the loss) and of backward (the "
    "call of `backward()`), by the benchmark's own clock, that `profile()` books on "
    "modules, and that `profile(functions=True)` books on modules and functions. The "
    "autograd engine's own beginning, until the first node of a pass runs (torch makes "
    "the first gradient, and the engine counts the graph's edges: 0.1 to 0.3 ms), has "
    "a row of its own, and is attributed in the next two columns.",
    "Missing in forward are a loss that is no module, and with functions, what Python "
    "does between these. Missing in backward is what lies before the engine begins and "
    "after its last node, and without functions, the nodes of the loss.",
)


def measure(workload: Workload, *, functions: bool) -> dict[str, float]:
    """Shares of the wall time of forward and backward by who has it: of some
    rounds, the medians."""
    prof = profile(functions=functions)
    measured = [one_round(workload, prof) for _ in range(1 + rounds(ROUNDS))]
    return {key: median(m[key] for m in measured[1:]) for key in measured[0]}


def one_round(workload: Workload, prof: Profiler) -> dict[str, float]:
    before, wall_ns = booked(prof.profile), Counter[str]()
    with prof:
        for _ in range(STEPS):
            one_step(workload, wall_ns)
    found = booked(prof.profile)
    found.subtract(before)
    in_backward = found["backward"] + found["engine"]
    return {
        "forward": found["forward"] / wall_ns["forward"],
        "backward_of_owners": found["backward"] / wall_ns["backward"],
        "backward": in_backward / wall_ns["backward"],
    }


def one_step(workload: Workload, wall_ns: Counter[str]) -> None:
    """A forward and a backward, with the clock read around them."""
    workload.model.zero_grad()
    start_ns = perf_counter_ns()
    loss = workload.loss()
    middle_ns = perf_counter_ns()
    torch.autograd.backward(loss)
    end_ns = perf_counter_ns()
    wall_ns["forward"] += middle_ns - start_ns
    wall_ns["backward"] += end_ns - middle_ns


def booked(found: Profile) -> Counter[str]:
    """Nanoseconds on modules and functions in forward and in backward, and on the
    autograd engine."""
    times: Counter[str] = Counter()
    for row in found.rows("call"):
        for phase, totals in row.phases.items():
            if row.kind in ("module", "function"):
                times[PART_OF[phase]] += totals.self_ns
            elif row.name == ENGINE_NAME:
                times["engine"] += totals.self_ns
    return times


def shares(workload: Workload) -> dict[str, float]:
    modules = measure(workload, functions=False)
    functions = measure(workload, functions=True)
    found = modules | {f"{key}_with_functions": functions[key] for key in functions}
    return {name: round(share, 4) for name, share in found.items()}


def to_table(found: dict[str, dict[str, float]]) -> Table:
    columns = {
        "forward": "forward: modules",
        "forward_with_functions": "and functions",
        "backward_of_owners": "backward: modules",
        "backward_of_owners_with_functions": "and functions",
        "backward": "with the engine: modules",
        "backward_with_functions": "and functions",
    }
    rows: list[list[Cell]] = [
        [model, *(f"{shares_of_model[column]:.1%}" for column in columns)]
        for model, shares_of_model in found.items()
    ]
    return Table("Wall time that is attributed", ["", *columns.values()], rows, NOTES)


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # torch's, about hooks
    workloads = (make(device()) for make in WORKLOADS)
    found = {workload.name: shares(workload) for workload in workloads}
    save(result_name("coverage"), [to_table(found)], found)


if __name__ == "__main__":
    main()
