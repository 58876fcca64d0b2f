"""How long the calls of each row take in one run: what comparisons compare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import Final, Literal, NamedTuple

from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import without_numbers
from torchprof_hooks.profiles.names import Grouping, Phase
from torchprof_hooks.profiles.rows import Row
from torchprof_hooks.profiles.step_times import StepTimes

#: The name of the row of a whole step.
STEP: Final = "(step)"

#: The name of a row, and a phase; "" for the whole step.
RowPhase = tuple[str, Phase | Literal[""]]

#: Which time of calls: that of the "shortest" one, which other work of the machine
#: hardly touches, but which is only one of them; or the "mean" of all.
Measure = Literal["shortest", "mean"]
MEASURES: Final[tuple[Measure, ...]] = ("shortest", "mean")


class CallTimes(NamedTuple):
    """Calls of a row in one run.

    shortest_ns: the shortest call; 0 if that is not known.
    mean_ns: the mean less its standard error. A call that was interrupted, or the first
        one, takes far longer than the others, and adds just about that error to the
        mean; so it does not count.
    calls: how many there were.
    total_ns: how long they took together.
    is_own: whether most of that was not in inner calls of other rows.
    """

    shortest_ns: float
    mean_ns: float
    calls: int
    total_ns: float
    is_own: bool

    def by(self, measure: Measure) -> float:
        return self.shortest_ns if measure == "shortest" else self.mean_ns


#: The times of a row in the old, and in the new runs.
Sides = tuple[list[CallTimes], list[CallTimes]]


def call_times(run: ProfileData, by: Grouping) -> dict[RowPhase, CallTimes]:
    """The times of each row and phase that was called; and of a step, and what is
    outside of modules in it. After the start-up, if that is known."""
    part = run.loop if run.loop.steps and run.start_up.wall_ns else run.only_measured
    found: dict[RowPhase, CallTimes] = {}
    for row in part.rows(by):
        if row.kind != "profiler":
            found |= _times_of(row, part)
    if part.step_times.later_steps:
        found[STEP, ""] = _of_steps(part.step_times)
    return {key: times for key, times in found.items() if times.mean_ns > 0}


def layers_of(run: ProfileData, by: Grouping) -> dict[str, str]:
    """For each module of which there are several, the name of the row of all of them:
    ``Net.blocks.*.norm (Norm)``."""
    kinds = defaultdict[str, list[str]](list)
    for row in run.rows(by) if by == "module" else ():
        if row.kind == "module":
            kinds[f"{without_numbers(row.name)} ({row.class_name})"].append(row.name)
    several = {kind: names for kind, names in kinds.items() if len(names) > 1}
    return {name: kind for kind, names in several.items() for name in names}


def with_layers(
    times: Mapping[RowPhase, CallTimes], layers: Mapping[str, str]
) -> dict[RowPhase, CallTimes]:
    """The times, with those of a row for all layers of a kind (see `layers_of`)."""
    kinds = defaultdict[RowPhase, list[CallTimes]](list)
    for (name, phase), found in times.items():
        if name in layers:
            kinds[layers[name], phase].append(found)
    return {**times, **{kind: _mean_of(each) for kind, each in kinds.items()}}


def _mean_of(layers: Sequence[CallTimes]) -> CallTimes:
    shortest = [each.shortest_ns for each in layers]
    return CallTimes(
        fmean(shortest) if all(shortest) else 0,
        fmean(each.mean_ns for each in layers),
        sum(each.calls for each in layers),
        sum(each.total_ns for each in layers),
        is_own=False,  # it contains other rows: these layers
    )


def _times_of(row: Row, part: ProfileData) -> Iterable[tuple[RowPhase, CallTimes]]:
    steps = part.steps
    for phase, totals in row.phases.items():
        calls, total_ns, own_ns = totals.calls, totals.duration_ns, totals.self_ns
        if calls:
            mean_ns = _typical_ns(totals.mean_ns, totals.std_ns, calls)
            is_own = 2 * own_ns >= total_ns
            times = CallTimes(totals.min_ns, mean_ns, calls, total_ns, is_own)
            yield (row.name, phase), times
        elif row.kind == "outside" and steps:
            times = CallTimes(0, own_ns / steps, steps, own_ns, is_own=True)
            yield (row.name, phase), times


def _typical_ns(mean_ns: float, std_ns: float, calls: int) -> float:
    return mean_ns - (std_ns / sqrt(calls - 1) if calls > 1 else 0.0)


def _of_steps(times: StepTimes) -> CallTimes:
    count, mean_ns = times.later_steps, times.mean_ns
    squares_ns2 = sum(each.total_ns**2 / each.steps for each in times.later)
    std_ns = sqrt(max(squares_ns2 / count - mean_ns**2, 0.0))
    shortest_ns = min(each.total_ns / each.steps for each in times.later)
    typical_ns = _typical_ns(mean_ns, std_ns, count)
    return CallTimes(shortest_ns, typical_ns, count, count * mean_ns, is_own=False)
