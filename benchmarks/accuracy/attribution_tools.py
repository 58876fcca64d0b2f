"""Tools that tell how long each module took, all asked in the same way.

A tool looks at one training step, and answers with a number for each module and phase.
Tools that measure modules with what is inside of them are right here, too: the planted
modules contain no others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from tools import PEERS, BackwardHooksTimer
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from accuracy.planted_work import PHASES, Phase, Planted, Unit, Work
from accuracy.timed_tracker import TimedModuleTracker
from torchprof_hooks import profile

Answer = Mapping[tuple[Work, Phase], float]


@dataclass(frozen=True)
class Tool:
    """How to ask a tool about one step, and what it answers."""

    name: str
    ask: Callable[[Planted], Answer]
    phases: tuple[Phase, ...] = ("forward", "backward")
    unit: Unit = "ns"


def ask_profile(planted: Planted, *, functions: bool = False) -> Answer:
    """As in the report. What is recomputed counts as forward, as with other tools."""
    with profile(functions=functions) as prof:
        planted.step()
    answer: Counter[tuple[Work, Phase]] = Counter()
    works = dict(planted.names())
    for row in prof.profile.rows():
        if work := works.get(row.name):
            phases = row.phases
            answer[work, "backward"] += phases["backward"].self_ns
            answer[work, "forward"] += phases["forward"].self_ns
            answer[work, "forward"] += phases["recompute"].self_ns
    return answer


def ask_backward_hooks(planted: Planted) -> Answer:
    timers = [BackwardHooksTimer(root) for root in planted.roots]
    try:
        planted.step()
    finally:
        for timer in timers:
            timer.remove()
    return {
        (work, phase): sum(timer.spent_ns[work, phase] for timer in timers)
        for work in planted.works()
        for phase in PHASES
    }


def ask_module_tracker(planted: Planted) -> Answer:
    with TimedModuleTracker() as tracker:
        planted.step()
    return by_work(planted, tracker.spent_ns)


def ask_flop_counter(planted: Planted) -> Answer:
    with FlopCounterMode(display=False) as counter:
        planted.step()
    aten = torch.ops.aten
    products: dict[Phase, Any] = {"forward": aten.mm, "backward": aten.bmm}
    return by_work(
        planted,
        {
            (name, phase): counts.get(product, 0)
            for name, counts in counter.get_flop_counts().items()
            for phase, product in products.items()
        },
    )


def ask_torchprof(planted: Planted) -> Answer:
    make = import_module("torchprof").Profile
    with ExitStack() as stack:
        profiles = [stack.enter_context(make(root)) for root in planted.roots]
        planted.step()
    spent: Counter[tuple[str, Phase]] = Counter()
    for found in profiles:
        _, events = found.raw()
        for path, calls in events.items():
            for event in (event for call in calls for event in call):
                time_us = event.self_cpu_time_total
                spent[".".join(path), "forward"] += 1000 * time_us
    return by_work(planted, spent)


def ask_torch_profiler(planted: Planted) -> Answer:
    """With stacks there are events for modules, with the class and a number, in the
    order of first calls."""
    order: list[nn.Module] = []
    with register_module_forward_pre_hook(lambda module, inputs: order.append(module)):
        planted.step()
    works = [m for m in dict.fromkeys(order) if isinstance(m, Work)]
    planted.forget()
    with torch.profiler.profile(with_stack=True, with_modules=True) as prof:
        planted.step()
    times = {event.key: event.cpu_time_total for event in prof.key_averages()}
    return {
        (work, "forward"): 1000 * times.get(f"nn.Module: Work_{number}", 0)
        for number, work in enumerate(works)
    }


def ask_deepspeed(planted: Planted) -> Answer:
    make = import_module("deepspeed.profiling.flops_profiler").FlopsProfiler
    profilers = [make(root) for root in planted.roots]
    for profiler in profilers:
        profiler.start_profile()
    try:
        planted.step()
        return {
            (work, "forward"): 1e9 * getattr(work, "__duration__", 0.0)
            for work in planted.works()
        }
    finally:
        for profiler in profilers:
            profiler.end_profile()


def by_work(planted: Planted, numbers: Mapping[tuple[str, Phase], float]) -> Answer:
    """Numbers by module instead of by name; one may have several names."""
    answer: Counter[tuple[Work, Phase]] = Counter()
    works = dict(planted.names())
    for (name, phase), number in numbers.items():
        if work := works.get(name):
            answer[work, phase] += number  # type: ignore[assignment]
    return answer


TOOLS: Sequence[Tool] = (
    Tool("torchprof_hooks profile()", ask_profile),
    Tool(
        "torchprof_hooks profile(functions=True)",
        partial(ask_profile, functions=True),
    ),
    Tool("full backward hooks", ask_backward_hooks),
    Tool("ModuleTracker", ask_module_tracker),
    Tool("FlopCounterMode", ask_flop_counter, unit="flops"),
    Tool("torch.profiler", ask_torch_profiler, ("forward",)),
    Tool("torchprof", ask_torchprof, ("forward",)),
    Tool("DeepSpeed flops profiler", ask_deepspeed, ("forward",)),
)


def installed_tools() -> list[Tool]:
    missing = {peer.name for peer in PEERS if peer.why_missing()}
    return [tool for tool in TOOLS if tool.name not in missing]
