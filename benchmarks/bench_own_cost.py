"""How well the profiler knows its own cost, and what taking it out is worth.

Targets: the error of a parent of 1000 trivial children falls by a factor of 5 or more.
In whole training steps, what is believed is compared with what is really added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import results
import torch
from bench import device, result_name, rounds
from models import Workload, chain, gpt2_small, llama, lstm, resnet
from torch import Tensor, nn

from torchprof_hooks import profile
from torchprof_hooks.profile_type import Profile

CHILDREN = 1000
#: What the parent does itself.
SPIN_MS = 2
ROUNDS = 40
STEPS_ROUNDS = 80
STEPS = 5
WORKLOADS: Final[tuple[Callable[[str], Workload], ...]] = (
    chain,
    gpt2_small,
    resnet,
    lstm,
    llama,
)
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "profile()": {},
    "profile(functions=True)": {"functions": True},
    "profile(memory=True)": {"memory": True},
}


class Parent(nn.Module):
    """Works for a while, then calls its children one after the other."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.children_ = nn.ModuleList(make() for _ in range(CHILDREN))

    def forward(self, x: Tensor) -> Tensor:
        until_ns = perf_counter_ns() + SPIN_MS * 1_000_000
        while perf_counter_ns() < until_ns:
            pass
        for child in self.children_:
            x = child(x)
        return x


def planted(make: Callable[[], nn.Module], settings: Mapping[str, Any]) -> list[float]:
    """Milliseconds of the parent's forward: in truth, as measured, corrected."""
    parent, x = Parent(make), torch.zeros(4)
    measured = profile(**settings)
    with measured:  # finds the places of calls
        parent(x)
    rounds_ns = []
    known_ns = forward_ns(measured.profile)
    for _ in range(rounds(ROUNDS)):
        start_ns = perf_counter_ns()
        parent(x)
        true_ns = perf_counter_ns() - start_ns
        with measured:
            parent(x)
        before_ns, known_ns = known_ns, forward_ns(measured.profile)
        rounds_ns.append((true_ns, *np.subtract(known_ns, before_ns)))
    return [float(ns) / 1e6 for ns in np.median(rounds_ns, axis=0)]


def forward_ns(found: Profile) -> tuple[int, int]:
    """Of the parent with its children, as measured, and corrected."""
    rows = [*found.rows(), *found.corrected().rows()]
    raw, corrected = (row for row in rows if row.name == "Parent")
    return (
        raw.phases["forward"].cumulative_ns,
        corrected.phases["forward"].cumulative_ns,
    )


def compare_parents() -> tuple[results.Table, dict[str, Any]]:
    """The planted work."""
    rows, figures = [], {}
    for kind, make in {"nn.Identity": nn.Identity, "nn.ReLU": nn.ReLU}.items():
        for name, settings in SETTINGS.items():
            truth, raw, corrected = planted(make, settings)
            error, left = abs(raw - truth), abs(corrected - truth)
            figures[f"{kind}, {name}"] = {
                "true_ms": truth,
                "raw_ms": raw,
                "corrected_ms": corrected,
                "error_falls_by": error / left,
            }
            times = [f"{ms:.2f}" for ms in (truth, raw, corrected)]
            rows.append([f"{kind}, {name}", *times, f"{error / left:.1f}"])
    headers = ["", "true", "measured", "corrected", "error falls by"]
    title = f"Forward of a parent of {CHILDREN} children, ms"
    return results.Table(title, headers, rows), figures


def compare_steps(workload: Workload, settings: Mapping[str, Any]) -> tuple[int, int]:
    """Nanoseconds that measuring adds to a step, and what is believed of that. Steps
    are compared with their like: the first after a block begins is dearer."""
    measured = profile(**settings)
    with measured:
        workload.step()
    measured, added = profile(**settings), []
    for _ in range(rounds(STEPS_ROUNDS)):
        bare_ns = times_of_steps(workload)
        with measured:
            measured_ns = times_of_steps(workload)
        added.append(measured_ns - bare_ns)
    steps = STEPS * rounds(STEPS_ROUNDS)
    return round(np.median(added, axis=0).mean()), measured.profile.overhead_ns // steps


def times_of_steps(workload: Workload) -> npt.NDArray[np.int64]:
    """Nanoseconds of each of some steps."""
    ends_ns = [perf_counter_ns()]
    for _ in range(STEPS):
        workload.step()
        ends_ns.append(perf_counter_ns())
    return np.diff(ends_ns)


def compare_programs() -> tuple[results.Table, dict[str, Any]]:
    """Training steps."""
    rows: list[list[results.Cell]] = []
    figures = {}
    for make in WORKLOADS:
        workload = make(device())
        for name, settings in SETTINGS.items():
            added, believed = compare_steps(workload, settings)
            key = f"{workload.name}, {name}"
            figures[key] = {"added_ns": added, "believed_ns": believed}
            rows.append(
                [key, added // 1000, believed // 1000, f"{believed / added:.2f}"]
            )
    headers = ["", "us added to a step", "believed", "ratio"]
    return results.Table("What measuring takes", headers, rows), figures


def main() -> None:
    torch.set_num_threads(1)
    parents, planted_figures = compare_parents()
    programs, step_figures = compare_programs()
    figures = {"planted": planted_figures, "steps": step_figures}
    results.save(result_name("own_cost"), [parents, programs], figures)


if __name__ == "__main__":
    main()
