"""Times of modules as `torch.profiler` (Kineto) saw them: a truth of its own.

While a program runs, hooks note where each module's forward begins and ends: the time,
and the number that autograd's next node will get. Later these tell which module each of
the recorded operators belongs to: in forward by its time, in backward by the number of
its autograd node, which is that of the forward that made the node.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Any, Literal

import torch
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

Phase = Literal["forward", "backward"]
#: Nanoseconds by module and phase; None stands for what is outside of all modules.
Times = Counter[tuple[nn.Module | None, Phase]]

_OPERATOR, _NODE = 0, 1  # scopes of torch's recorded functions


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


@dataclass(frozen=True)
class Truth:
    """What modules took, in two ways.

    operators: the durations of operators and autograd nodes alone.
    intervals: also what lies between them: in forward from the beginning of a module to
        its end, in backward from the beginning of a node to that of the next one.
    """

    operators: Times
    intervals: Times


def truth(prof: torch.profiler.profile, intervals: ModuleIntervals) -> Truth:
    """Own times of modules in what `prof` recorded, all of it in one thread."""
    recorded: Any = prof.profiler  # torch gives no types for what it holds
    start_ns = recorded.kineto_results.trace_start_ns()
    return _Reader(recorded.function_events, start_ns, intervals).truth()


class _Reader:
    def __init__(
        self, events: list[FunctionEvent], start_ns: int, intervals: ModuleIntervals
    ) -> None:
        self._start_ns = start_ns
        self._intervals = intervals
        self._operators = [
            event
            for event in events
            if event.scope == _OPERATOR
            and event.cpu_parent is None
            and not event.name.startswith("autograd::engine")
        ]
        nodes = [event for event in events if event.scope == _NODE]
        self._nodes = sorted(nodes, key=lambda event: event.time_range.start)

    def truth(self) -> Truth:
        operators, intervals = Times(), Times()
        for event in self._operators:
            middle_us = (event.time_range.start + event.time_range.end) / 2
            module = self._intervals.by_time.at(self._start_ns + 1000 * middle_us)
            operators[module, "forward"] += _duration_ns(event)
        for module, start_ns, end_ns in self._forward_intervals():
            intervals[module, "forward"] += end_ns - start_ns
        owners = self._node_owners()
        for event, module in zip(self._nodes, owners, strict=True):
            # Around the node there may be more: sums to the shapes of its inputs.
            around = event.cpu_parent or event
            operators[module, "backward"] += sum(map(_duration_ns, around.cpu_children))
        for lasts_us, module in zip(self._node_intervals(), owners, strict=True):
            intervals[module, "backward"] += round(1000 * lasts_us)
        return Truth(operators, intervals)

    def _node_intervals(self) -> Iterator[float]:
        """Each lasts until the next node begins; the last one of a backward pass, until
        it ends, and autograd has done with it. In microseconds."""
        starts = [event.time_range.start for event in self._nodes]
        next_starts = [*starts[1:], inf]
        for node, start, next_start in zip(
            self._nodes, starts, next_starts, strict=True
        ):
            is_last = self._passes_until(start) < self._passes_until(next_start)
            end = (node.cpu_parent or node).time_range.end
            yield (end if is_last else next_start) - start

    def _passes_until(self, time_us: float) -> int:
        """How many backward passes have ended before that."""
        ends_ns = self._intervals.pass_ends_ns
        return bisect_right(ends_ns, self._start_ns + 1000 * time_us)

    def _forward_intervals(self) -> Iterator[tuple[nn.Module, int, int]]:
        timeline = self._intervals.by_time
        intervals = pairwise(timeline.positions)
        for (start_ns, end_ns), module in zip(
            intervals, timeline.modules, strict=False
        ):
            if module is not None:
                yield module, start_ns, end_ns

    def _node_owners(self) -> list[nn.Module | None]:
        """The module of each node. One that stores a gradient has no number: it
        belongs to the node that ran before it."""
        owners: list[nn.Module | None] = []
        for event in self._nodes:
            if event.sequence_nr >= 0:
                owners.append(self._intervals.by_node.at(event.sequence_nr))
            else:
                owners.append(owners[-1] if owners else None)
        return owners


def _duration_ns(event: FunctionEvent) -> int:
    lasts_us: float = event.time_range.end - event.time_range.start
    return round(1000 * lasts_us)
