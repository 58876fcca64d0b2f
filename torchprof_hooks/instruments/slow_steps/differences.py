"""What the slow steps did differently: by phases, and by modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from torchprof_hooks.instruments.slow_steps.booked import Booked
from torchprof_hooks.kernel.reading import Reading
from torchprof_hooks.profiles.cells import place_without_functions
from torchprof_hooks.profiles.modules import ModuleInfo, descriptions
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.step_history import PhaseOfStep, SlowStep, slowest_of
from torchprof_hooks.profiles.step_times import StepTimes

#: A module is named if its own time is such a part of the difference.
_MOSTLY: Final = 0.5

#: Descriptions of names.
Infos = Mapping[str, ModuleInfo]


def slowest_steps(
    reading: Reading, times: StepTimes, found: list[Booked], steps: int, others: Booked
) -> tuple[SlowStep, ...]:
    """The slowest of the steps that were `found` to be slow.

    times: of all steps. steps, others: how many others there were, and what was booked
        in them.
    """
    return slowest_of(_slow_steps(reading, times, found, steps, others))


def _slow_steps(
    reading: Reading, times: StepTimes, found: list[Booked], steps: int, others: Booked
) -> Iterator[SlowStep]:
    if steps <= 0:
        median_ns = round(times.quantile_ns(0.5))
        for each in found:
            yield SlowStep(
                each.number, each.duration_ns, median_ns, objects=each.objects
            )
        return
    names = {name for site in [*reading.sites] for name in site.path}
    infos = descriptions(names, reading.tree.names.infos)
    usual = _Times(reading, infos, others, steps)
    for each in found:
        yield _slow_step(each, _Times(reading, infos, each), usual)


class _Times:
    """Where the time of a step went, or on average that of several.

    phases: own times by phase. modules: those of modules, by name.
    """

    def __init__(
        self, reading: Reading, infos: Infos, sums: Booked, steps: int = 1
    ) -> None:
        phases, modules = Counter[Phase](), Counter[str]()
        own_ns_of = reading.own_ns(sums.booked_ns)
        for site, own_ns in zip(reading.sites, own_ns_of, strict=False):
            path, phase = place_without_functions(site.path, site.phase, infos)
            phases[phase] += own_ns
            if path and path[-1] in infos and infos[path[-1]].kind == "module":
                modules[path[-1]] += own_ns
        del phases["outside"]  # it is the rest, of which most is at no site
        self.duration_ns = round(sums.duration_ns / steps)
        self.phases = {phase: round(ns / steps) for phase, ns in phases.items() if ns}
        self.phases["outside"] = self.duration_ns - sum(self.phases.values())
        self.modules = {name: round(ns / steps) for name, ns in modules.items()}


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
        reading.objects,
    )
