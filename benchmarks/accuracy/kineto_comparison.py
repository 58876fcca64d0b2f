"""Our times of modules next to those from `torch.profiler`, of the same steps."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from statistics import median, quantiles
from typing import Any, Literal

import torch
from models import Workload
from results import Cell, Table
from torch import nn

from accuracy.kineto_truth import ModuleIntervals, Phase, Times, truth
from torchprof_hooks import Profile, profile
from torchprof_hooks.profiler import Profiler

#: Steps that are recorded in one go.
STEPS = 4
#: Modules count that take at least this share of the forward or backward.
SMALLEST_SHARE = 0.01

Against = Literal["intervals", "operators"]
PHASES: tuple[Phase, ...] = ("forward", "backward")


@dataclass(frozen=True)
class Measured:
    """Own time of one module in one phase, in nanoseconds per step: ours, and the
    truth; and what share of the phase's it is."""

    name: str
    phase: Phase
    against: Against
    ours_ns: float
    true_ns: float
    our_share: float
    true_share: float

    @property
    def error(self) -> float:
        """In per cent."""
        return 100 * (self.ours_ns / self.true_ns - 1)


def measure(workload: Workload, rounds: int) -> list[Measured]:
    """The modules that count; of each, the round with the median error."""
    ours = profile()
    found = [record(workload, ours) for _ in range(1 + rounds)][1:]  # one to warm up
    everything = sorted((m for measured in found for m in measured), key=_place)
    groups = (list(group) for _, group in groupby(everything, _place))
    medians = (sorted(group, key=_error)[len(group) // 2] for group in groups)
    return [measured for measured in medians if counts(measured)]


def counts(measured: Measured) -> bool:
    return measured.true_share >= SMALLEST_SHARE


def _place(measured: Measured) -> tuple[str, Phase, Against]:
    return measured.name, measured.phase, measured.against


def _error(measured: Measured) -> float:
    return measured.error


def record(workload: Workload, ours: Profiler) -> list[Measured]:
    """Some forwards and backwards, seen by both; Python's garbage has to wait.

    The intervals hold what looking costs, on both sides; operators do not.
    """
    intervals, before = ModuleIntervals(), ours.profile
    gc.collect()
    gc.disable()
    try:
        with intervals.recorded(), torch.profiler.profile() as kineto, ours:
            for _ in range(STEPS):
                workload.model.zero_grad()
                torch.autograd.backward(workload.loss())
                intervals.end_of_backward()
    finally:
        gc.enable()
    true = truth(kineto, intervals)
    names = names_of(workload.model)
    found = own_times(ours.profile, names) - own_times(before, names)
    return [
        *matched(names, "intervals", found, true.intervals),
        *matched(names, "operators", found, true.operators),
    ]


def names_of(model: nn.Module) -> dict[str, nn.Module]:
    root = type(model).__name__
    return {
        f"{root}.{path}" if path else root: module
        for path, module in model.named_modules()
    }


def own_times(ours: Profile, names: Mapping[str, nn.Module]) -> Times:
    return Times(
        {
            (names[row.name], phase): row.phases[phase].self_ns
            for row in ours.rows()
            for phase in PHASES
            if row.name in names
        }
    )


def matched(
    names: Mapping[str, nn.Module], against: Against, ours: Times, true: Times
) -> Iterator[Measured]:
    """What both say of each module in each phase."""
    for phase in PHASES:
        keys = {name: (module, phase) for name, module in names.items()}
        our_sum, true_sum = (
            sum(times[key] for key in keys.values()) for times in (ours, true)
        )
        for name, key in keys.items():
            if true[key]:
                yield Measured(
                    name,
                    phase,
                    against,
                    ours[key] / STEPS,
                    true[key] / STEPS,
                    ours[key] / our_sum,
                    true[key] / true_sum,
                )


def summary(measured: Iterable[Measured]) -> dict[str, float]:
    """Errors in per cent (of `total`, of all modules that count together), and the
    largest difference of a share, in percentage points."""
    counting = list(measured)
    errors = [abs(m.error) for m in counting]
    ours_ns = sum(m.ours_ns for m in counting)
    true_ns = sum(m.true_ns for m in counting)
    return {
        "modules": len(counting),
        "median": round(median(errors), 2),
        "most": round(ninth_tenth(errors), 2),
        "total": round(100 * (ours_ns / true_ns - 1), 2),
        "share": round(100 * max(abs(m.our_share - m.true_share) for m in counting), 2),
    }


def ninth_tenth(errors: list[float]) -> float:
    """Nine of ten are not larger."""
    if len(errors) < 2:
        return errors[0]
    return quantiles(errors, n=10, method="inclusive")[-1]


def of(
    measured: Iterable[Measured], phase: Phase, against: Against
) -> dict[str, float]:
    return summary(m for m in measured if (m.phase, m.against) == (phase, against))


def table(
    found: Mapping[str, list[Measured]],
    against: Against,
    title: str,
    notes: Iterable[str] = (),
) -> Table:
    rows: list[list[Cell]] = []
    for model, measured in found.items():
        for phase in PHASES:
            row = of(measured, phase, against)
            rows.append(
                [
                    f"{model}, {phase}",
                    int(row["modules"]),
                    f"{row['median']:.1f} %",
                    f"{row['most']:.1f} %",
                    f"{row['total']:+.1f} %",
                    f"{row['share']:.1f}",
                ]
            )
    headers = [
        "",
        "modules",
        "error: median",
        "9 of 10 below",
        "of the sum",
        "largest difference of shares (points)",
    ]
    return Table(title, headers, rows, list(notes))


def figures(found: Mapping[str, list[Measured]]) -> dict[str, dict[str, Any]]:
    """By model: errors in per cent, and each module's name, phase, and time in ms by
    us and by Kineto."""
    return {
        model: {
            **{
                f"{phase}_{error}_error": of(measured, phase, "intervals")[error]
                for phase in PHASES
                for error in ("median", "most", "total")
            },
            **{
                f"{phase}_{error}_error_of_operators": of(measured, phase, "operators")[
                    error
                ]
                for phase in PHASES
                for error in ("median", "most", "total")
            },
            "total_error": total_error(measured),
            "modules": [
                [m.name, m.phase, round(m.ours_ns / 1e6, 4), round(m.true_ns / 1e6, 4)]
                for m in measured
                if m.against == "intervals"
            ],
        }
        for model, measured in found.items()
    }


def total_error(measured: Iterable[Measured]) -> float:
    return summary(m for m in measured if m.against == "intervals")["total"]


def compare_models(
    makers: Iterable[Callable[[str], Workload]], rounds: int
) -> dict[str, list[Measured]]:
    workloads = (make("cpu") for make in makers)
    return {workload.name: measure(workload, rounds) for workload in workloads}
