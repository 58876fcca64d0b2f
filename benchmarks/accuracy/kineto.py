"""Our times of modules next to those from `torch.profiler` (Kineto), of the same steps.

While a program runs, hooks note where each module's forward begins and ends: the time,
and the number that autograd's next node will get. Own time in forward is what lies
between a module's beginning and its end, without inner modules. In backward, the number
of each recorded node tells which module made it; a node lasts until the next begins.
"""

from __future__ import annotations

import gc
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import inf
from statistics import median, quantiles
from typing import Any

import torch
from models import Workload
from results import Cell, Table
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from accuracy.planted_work import PHASES, Phase
from torchprof_hooks import Profile, profile
from torchprof_hooks.profiler import Profiler

#: Steps that are recorded in one go.
STEPS = 4
#: Modules count that take at least this share of the forward or backward.
SMALLEST_SHARE = 0.01
NOTES = (
    "`profile()` and `torch.profiler` look at the same steps. The truth is made from "
    "hooks of the benchmark's own and from Kineto's events. Own time in forward is "
    "what lies between a module's beginning and its end, without inner modules. In "
    "backward, it is the time from the beginning of each of the module's autograd "
    "nodes to the beginning of the next node, whosever that is. A node belongs to "
    "the innermost module in whose forward it was made, by its sequence number; one "
    "that stores gradients, to the node before it. Modules count that take 1 % of "
    "the phase or more; of several recordings, the one with the median error. "
    "`profile()` books the end of a backward pass (some 50 us with Kineto) on the "
    "module that is the last.",
)

#: Nanoseconds by module and phase; None stands for what is outside of all modules.
Times = Counter[tuple[nn.Module | None, Phase]]

_NODE = 1  # the scope of autograd's nodes among torch's recorded functions


@dataclass
class Timeline:
    """Which module was running from each position on; positions never decrease."""

    positions: list[int] = field(default_factory=list)
    modules: list[nn.Module | None] = field(default_factory=list)

    def add(self, position: int, module: nn.Module | None) -> None:
        self.positions.append(position)
        self.modules.append(module)

    def at(self, position: float) -> nn.Module | None:
        """The innermost module there. Of several that begin there it is the last."""
        index = bisect_right(self.positions, position) - 1
        return self.modules[index] if index >= 0 else None


class ModuleIntervals:
    """Where modules begin and end, in time and in the numbers of autograd nodes."""

    def __init__(self) -> None:
        self.by_time, self.by_node = Timeline(), Timeline()
        self.pass_ends_ns: list[int] = []
        self._running: list[nn.Module | None] = [None]

    @contextmanager
    def recorded(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for handle in (
                register_module_forward_pre_hook(self._begin),
                register_module_forward_hook(self._end),
            ):
                hooks.enter_context(handle)
            yield

    def end_of_backward(self) -> None:
        """To be called after each backward pass."""
        self.pass_ends_ns.append(time.time_ns())

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        self._running.append(module)
        self._now_in(module)

    def _end(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self._running.pop()
        self._now_in(self._running[-1])

    def _now_in(self, module: nn.Module | None) -> None:
        self.by_node.add(torch._C._autograd._get_sequence_nr(), module)
        self.by_time.add(time.time_ns(), module)


def truth(prof: torch.profiler.profile, intervals: ModuleIntervals) -> Times:
    """Own times of modules in what `prof` recorded, all of it in one thread."""
    recorded: Any = prof.profiler  # torch gives no types for what it holds
    nodes = [event for event in recorded.function_events if event.scope == _NODE]
    nodes.sort(key=lambda event: event.time_range.start)
    times = Times()
    timeline = intervals.by_time
    spans = pairwise(timeline.positions)
    for (start_ns, end_ns), module in zip(spans, timeline.modules, strict=False):
        times[module, "forward"] += end_ns - start_ns
    start_ns = recorded.kineto_results.trace_start_ns()
    pass_ends_us = [(end - start_ns) / 1000 for end in intervals.pass_ends_ns]
    lasting = node_intervals_us(nodes, pass_ends_us)
    for lasts_us, module in zip(lasting, node_owners(nodes, intervals), strict=True):
        times[module, "backward"] += round(1000 * lasts_us)
    return times


def node_intervals_us(
    nodes: Sequence[FunctionEvent], pass_ends_us: Sequence[float]
) -> Iterator[float]:
    """Each lasts until the next node begins; the last one of a backward pass, until it
    ends, and autograd has done with it."""
    next_starts = [*(node.time_range.start for node in nodes[1:]), inf]
    for node, next_start in zip(nodes, next_starts, strict=True):
        start = node.time_range.start
        passes = bisect_right(pass_ends_us, start)
        is_last = passes < bisect_right(pass_ends_us, next_start)
        end = (node.cpu_parent or node).time_range.end
        yield (end if is_last else next_start) - start


def node_owners(
    nodes: Sequence[FunctionEvent], intervals: ModuleIntervals
) -> list[nn.Module | None]:
    """The module of each node. One that stores a gradient has no number: it belongs to
    the node that ran before it."""
    owners: list[nn.Module | None] = []
    for node in nodes:
        if node.sequence_nr >= 0:
            owners.append(intervals.by_node.at(node.sequence_nr))
        else:
            owners.append(owners[-1] if owners else None)
    return owners


@dataclass(frozen=True)
class Measured:
    """Own time of one module in one phase, in nanoseconds per step: ours, and the
    truth; and what share of the phase's it is."""

    name: str
    phase: Phase
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
    return [each for each in medians if each.true_share >= SMALLEST_SHARE]


def _place(measured: Measured) -> tuple[str, Phase]:
    return measured.name, measured.phase


def _error(measured: Measured) -> float:
    return measured.error


def record(workload: Workload, ours: Profiler) -> list[Measured]:
    """Some forwards and backwards, seen by both; Python's garbage has to wait. What
    looking costs is in the times of both."""
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
    root = type(workload.model).__name__
    names = {
        f"{root}.{path}" if path else root: module
        for path, module in workload.model.named_modules()
    }
    found = own_times(ours.profile, names) - own_times(before, names)
    return list(matched(names, found, truth(kineto, intervals)))


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
    names: Mapping[str, nn.Module], ours: Times, true: Times
) -> Iterator[Measured]:
    """What both say of each module in each phase."""
    for phase in PHASES:
        keys = {name: (module, phase) for name, module in names.items()}
        our_sum, true_sum = (
            sum(times[key] for key in keys.values()) for times in (ours, true)
        )
        for name, key in keys.items():
            if true[key]:
                mine, right = ours[key], true[key]
                shares = mine / our_sum, right / true_sum
                yield Measured(name, phase, mine / STEPS, right / STEPS, *shares)


def summary(measured: Iterable[Measured], phase: Phase) -> dict[str, float]:
    """Errors in per cent (of `total`, of all modules that count together), and the
    largest difference of a share, in percentage points."""
    counting = [each for each in measured if each.phase == phase]
    errors = [abs(m.error) for m in counting]
    ours_ns = sum(m.ours_ns for m in counting)
    true_ns = sum(m.true_ns for m in counting)
    most = quantiles(errors, n=10, method="inclusive")[-1] if errors[1:] else errors[0]
    return {
        "modules": len(counting),
        "median": round(median(errors), 2),
        "most": round(most, 2),
        "total": round(100 * (ours_ns / true_ns - 1), 2),
        "share": round(100 * max(abs(m.our_share - m.true_share) for m in counting), 2),
    }


def table(found: Mapping[str, list[Measured]]) -> Table:
    rows: list[list[Cell]] = []
    for model, measured in found.items():
        for phase in PHASES:
            row = summary(measured, phase)
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
    title = "Own times of modules: profile() and Kineto, wall time"
    return Table(title, headers, rows, NOTES)


def figures(found: Mapping[str, list[Measured]]) -> dict[str, dict[str, float]]:
    """By model: errors in per cent."""
    return {
        model: {
            f"{phase}_{error}_error": summary(measured, phase)[error]
            for phase in PHASES
            for error in ("median", "most", "total")
        }
        for model, measured in found.items()
    }


def compare_models(
    makers: Iterable[Callable[[str], Workload]], rounds: int
) -> dict[str, list[Measured]]:
    workloads = (make("cpu") for make in makers)
    return {workload.name: measure(workload, rounds) for workload in workloads}
