"""What the slow training steps of a thread did differently from its other ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING, Final, NamedTuple

from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.reading import Reading, Step
from torchprof_hooks.kernel.reference.span_log import NO_SUMS, Int64s, padded
from torchprof_hooks.profiles.cells import place_without_functions
from torchprof_hooks.profiles.modules import ModuleInfo, descriptions
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.step_history import PhaseOfStep, SlowStep, slowest_of
from torchprof_hooks.profiles.step_times import MOST_SLOW, StepTimes

if TYPE_CHECKING:
    from torchprof_hooks.profiles.data import ProfileData

#: A module is named if its own time is such a part of the difference.
_MOSTLY: Final = 0.5

#: Descriptions of names.
Infos = Mapping[str, ModuleInfo]


class Booked(NamedTuple):
    """What was booked in a step, or in several: nanoseconds by the code of the site, of
    calls that have ended in it."""

    duration_ns: int
    number: int
    booked_ns: Int64s

    def __lt__(self, other: Booked) -> bool:  # type: ignore[override]
        """In a heap, the shortest step comes first."""
        return self.duration_ns < other.duration_ns

    def __add__(self, other: Booked) -> Booked:  # type: ignore[override]
        size = max(len(self.booked_ns), len(other.booked_ns))
        return Booked(
            self.duration_ns + other.duration_ns,
            0,
            padded(self.booked_ns, size) + padded(other.booked_ns, size),
        )


class SlowSteps(Observer):
    """Keeps what was booked in the longest steps.

    steps, steps_ns: how many training steps after the first have ended, and their time.
    readings: of the longest of those that may be slow: whether they are will be known
        in the end.
    others: what was booked outside of these steps: in the first one, in evaluations.
    """

    def __init__(self) -> None:
        self.steps = self.steps_ns = 0
        self.readings: list[Booked] = []  # a heap
        self.others = Booked(0, 0, NO_SUMS)

    def between_steps(self, step: Step) -> None:
        if step.number:
            self.steps += 1
            self.steps_ns += step.duration_ns
        if step.may_be_slow or not step.number:
            booked_ns = self.reading.booked_ns(in_step=True)
            found = Booked(step.duration_ns, step.number, booked_ns)
            if step.number:
                self._keep(found)
            else:
                self.others += found

    def _keep(self, found: Booked) -> None:
        if len(self.readings) < MOST_SLOW:
            heappush(self.readings, found)
        else:
            heappushpop(self.readings, found)

    def added_to(self, profile: ProfileData) -> ProfileData:
        """The profile, with the slowest steps in its history."""
        history = profile.step_history
        if not history.stretch_steps:
            return profile
        slowest = slowest_of(self._slow_steps(profile.step_times))
        return replace(profile, step_history=replace(history, slowest=slowest))

    def _slow_steps(self, times: StepTimes) -> Iterator[SlowStep]:
        every = [*self.readings]  # once: the measured thread may add more
        found = [each for each in every if 0 < times.slow_ns < each.duration_ns]
        if not found:
            return
        steps, sums = self._without(found)
        if steps <= 0:
            median_ns = round(times.quantile_ns(0.5))
            yield from (SlowStep(r.number, r.duration_ns, median_ns) for r in found)
            return
        names = {name for site in [*self.reading.sites] for name in site.path}
        infos = descriptions(names, self.reading.tree.names.infos)
        usual = _Times(self.reading, infos, sums, steps)
        for each in found:
            yield _slow_step(each, _Times(self.reading, infos, each), usual)

    def _without(self, found: list[Booked]) -> tuple[int, Booked]:
        """How many training steps there were but for these, and what was booked in
        them."""
        left_out = self.others
        for each in found:
            left_out += each
        until_now = self.reading.booked_ns()
        in_step = self.reading.booked_ns(in_step=True)
        until_now = until_now - padded(in_step, len(until_now))
        booked_ns = until_now - padded(left_out.booked_ns, len(until_now))
        duration_ns = self.steps_ns - sum(each.duration_ns for each in found)
        return self.steps - len(found), Booked(duration_ns, 0, booked_ns)


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
    )
