"""How well the profiler knows its own cost: what is believed, by what was counted, is
compared with what is really added to training steps."""

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

from torchprof_hooks import profile

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
    programs, figures = compare_programs()
    results.save(result_name("own_cost"), [programs], figures)


if __name__ == "__main__":
    main()
