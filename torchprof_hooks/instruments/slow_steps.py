"""What the slow training steps of a tracker did differently from its other ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from torchprof_hooks.kernel.own_sums import own_host_ns
from torchprof_hooks.kernel.reference.span_log import NO_SUMS, Int64s, Times
from torchprof_hooks.kernel.step_counter import Booked, StepCounter
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.cells import place_without_functions
from torchprof_hooks.profiles.modules import ModuleInfo, descriptions
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.step_history import (
    PhaseOfStep,
    SlowStep,
    StepHistory,
    slowest_of,
)
from torchprof_hooks.profiles.step_times import StepTimes

#: A module is named if its own time is such a part of the difference.
_MOSTLY: Final = 0.5

#: Descriptions of names.
Infos = Mapping[str, ModuleInfo]


def history_of(counted: StepCounter, tracker: Tracker) -> StepHistory:
    """The steps that a tracker has seen, over time, and the slowest of them."""
    history = counted.history()
    if not history.stretch_steps:
        return history
    slowest = slowest_of(_slow_steps(tracker, counted.times()))
    return replace(history, slowest=slowest)


def _slow_steps(tracker: Tracker, times: StepTimes) -> Iterator[SlowStep]:
    every = [*tracker.slow_steps.readings]  # once: the measured thread may add more
    found = [each for each in every if 0 < times.slow_ns < each.duration_ns]
    if not found:
        return
    steps, sums = tracker.slow_steps.without(found)
    if steps <= 0:
        median_ns = round(times.quantile_ns(0.5))
        yield from (SlowStep(r.number, r.duration_ns, median_ns) for r in found)
        return
    sites = list(tracker.sites)
    names = {name for site in sites for name in site.path}
    infos = descriptions(names, tracker.names.infos)
    usual = _Times(sites, infos, sums, steps)
    for each in found:
        yield _slow_step(each, _Times(sites, infos, each), usual)


class _Times:
    """Where the time of a step went, or on average that of several.

    phases: own times by phase. modules: those of modules, by name.
    """

    def __init__(
        self, sites: list[Site], infos: Infos, sums: Booked, steps: int = 1
    ) -> None:
        phases, modules = Counter[Phase](), Counter[str]()
        for site, own_ns in zip(sites, _own_ns(sites, sums), strict=False):
            path, phase = place_without_functions(site.path, site.phase, infos)
            phases[phase] += own_ns
            if path and path[-1] in infos and infos[path[-1]].kind == "module":
                modules[path[-1]] += own_ns
        del phases["outside"]  # it is the rest, of which most is at no site
        self.duration_ns = round(sums.duration_ns / steps)
        self.phases = {phase: round(ns / steps) for phase, ns in phases.items() if ns}
        self.phases["outside"] = self.duration_ns - sum(self.phases.values())
        self.modules = {name: round(ns / steps) for name, ns in modules.items()}


def _own_ns(sites: list[Site], sums: Booked) -> list[int]:
    empty: Int64s = NO_SUMS
    times = Times(empty, sums.booked_ns, empty, empty, [], empty)
    return own_host_ns(sites, times)


def _slow_step(reading: Booked, found: _Times, usual: _Times) -> SlowStep:
    phases = [
        PhaseOfStep(phase, found.phases.get(phase, 0), usual.phases.get(phase, 0))
        for phase in {**found.phases, **usual.phases}
    ]
    phases.sort(key=lambda each: (-abs(each.more_ns), each.phase))
    more_ns = {n: ns - usual.modules.get(n, 0) for n, ns in found.modules.items()}
    module = max(more_ns, key=more_ns.__getitem__, default="")
    least_ns = _MOSTLY * (found.duration_ns - usual.duration_ns)
    if more_ns.get(module, 0) < least_ns:
        module = ""
    return SlowStep(
        reading.number,
        reading.duration_ns,
        usual.duration_ns,
        tuple(phases),
        module,
        found.modules.get(module, 0),
        usual.modules.get(module, 0),
    )
