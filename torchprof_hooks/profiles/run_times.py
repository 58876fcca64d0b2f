"""The runs of both sides of a comparison, and how long the calls of each row take in
them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final, Literal, NamedTuple

from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.kinds import LayerKind, kind_of
from torchprof_hooks.profiles.names import Grouping, Kind, Phase
from torchprof_hooks.profiles.rows import Row

#: The name of the row of a whole step.
STEP: Final = "(step)"

#: The name of a row, and a phase; "" for the whole step.
RowPhase = tuple[str, Phase | Literal[""]]

#: Profiles are of one program if rows of both have this share of the time of either.
_RELATED: Final = 0.5
#: Kinds of rows that tell whether they are.
_CALLED: Final[tuple[Kind, ...]] = ("module", "function")
#: Kinds of rows of which the shortest call counts. Others wait, mostly for nothing.
_SHORTEST: Final[tuple[Kind, ...]] = (*_CALLED, "optimizer")
#: Kinds of rows whose time in a step counts: what is called there is of others, too.
_IN_STEP: Final[tuple[Kind, ...]] = ("outside", "backward")
#: What to compare by instead, where rows of both have other names.
_INSTEAD: Final[Mapping[Grouping, str]] = {
    "module": ". If modules were renamed, compare by class",
    "call": ". Names of call sites have shapes: compare by function",
}


class CallTimes(NamedTuple):
    """Calls of a row in one run.

    ns: the shortest call, or step, which other work of the machine hardly touches; of
        what waits, and of time outside of modules, the mean; 0 if there is a shortest
        one, and it is not known, as of modules in compiled code.
    calls: how many there were; of time outside of modules, steps.
    total_ns: how long they took together.
    is_own: whether most of that was not in inner calls of other rows.
    inside_ns: how long they took, as far as it is of the same phase.
    steps: how many steps there were.
    is_mean: whether `ns` is the mean of a step (see `comparable`).
    """

    ns: float
    calls: int
    total_ns: float
    is_own: bool
    inside_ns: int
    steps: int
    is_mean: bool = False


def compared_part(run: ProfileData) -> ProfileData:
    """What is compared of a run: what came after the start-up, if that is known."""
    loop = run.loop
    return loop if loop.steps and run.start_up.wall_ns else run.only_measured


def call_times(part: ProfileData, by: Grouping) -> dict[RowPhase, CallTimes]:
    """The times of each row and phase that was called; and of a step, and what is
    outside of modules in it."""
    found: dict[RowPhase, CallTimes] = {}
    steps, step_times = part.steps, part.step_times
    for row in part.rows(by):
        if row.kind != "profiler":
            found.update(_times_of(row, steps))
    if steps := step_times.later_steps:
        shortest = step_times.later[0]  # within 1 %: a bucket
        ns, total_ns = shortest.total_ns / shortest.steps, step_times.later_ns
        found[STEP, ""] = CallTimes(ns, steps, total_ns, False, total_ns, steps)
    return {key: times for key, times in found.items() if times.inside_ns > 0}


def _times_of(row: Row, steps: int) -> Iterator[tuple[RowPhase, CallTimes]]:
    for phase, totals in row.phases.items():
        inside_ns = totals.cumulative_ns
        own_ns, total_ns = totals.self_ns, totals.duration_ns or inside_ns
        if totals.calls and row.kind not in _IN_STEP:
            ns = totals.min_ns if row.kind in _SHORTEST else totals.mean_ns
            is_own = 2 * own_ns >= total_ns
            times = CallTimes(ns, totals.calls, total_ns, is_own, inside_ns, steps)
            yield (row.name, phase), times
        elif row.kind in _IN_STEP and steps:
            times = CallTimes(own_ns / steps, steps, own_ns, True, own_ns, steps)
            yield (row.name, phase), times


def layers_of(runs: Iterable[ProfileData], by: Grouping) -> dict[str, str]:
    """For each module of which there are several, the name of the row of all of them:
    ``Net.blocks.*.norm: 12 Norm``."""
    kinds = defaultdict[LayerKind, set[str]](set)
    for row in (row for run in runs for row in run.rows(by) if by == "module"):
        if row.kind == "module":
            kinds[kind_of(row)].add(row.name)
    several = ((kind, names) for kind, names in kinds.items() if len(names) > 1)
    return {name: kind.label(names) for kind, names in several for name in names}


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
    return CallTimes(
        fmean(each.ns for each in layers) if all(each.ns for each in layers) else 0.0,
        sum(each.calls for each in layers),
        sum(each.total_ns for each in layers),
        is_own=False,  # it contains other rows: these layers
        inside_ns=sum(each.inside_ns for each in layers),
        steps=sum(each.steps for each in layers),
    )


def comparable(runs: list[CallTimes]) -> list[CallTimes]:
    """The times of a row in several runs. If one of them knows no shortest call, all
    are the mean of a step: compiled code calls a module once that is called twice."""
    if all(each.ns for each in runs):
        return runs
    by_step = all(each.steps for each in runs)
    counts = [each.steps if by_step else each.calls for each in runs]
    return [
        each._replace(ns=each.inside_ns / count, calls=count, is_mean=True)
        for each, count in zip(runs, counts, strict=True)
    ]


# The runs of a side


def checked_runs(name: str, runs: object) -> list[ProfileData]:
    """The runs of a side, if these are profiles of runs of their own."""
    found = [runs] if isinstance(runs, ProfileData) else runs
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise TypeError(f"{name} must be a Profile, or several, not {runs!r}")
    for run in found:
        if not isinstance(run, ProfileData):
            raise TypeError(f"{name} must be a Profile, or several, not {run!r}")
    if not found:
        raise ValueError(f"{name} has no profile: give one for each run")
    processes = [each for run in found for each in run.provenance if each.started_ns]
    if len({(p.host, p.pid, p.started_ns) for p in processes}) < len(processes):
        raise ValueError(f"{name} has a run twice: give each run once")
    if len(found) > 1 and len({each.rank for each in processes}) > 1:
        raise ValueError(
            f"{name} has several ranks, which are no runs of their own: merge the "
            "ranks of each run, or compare one rank"
        )
    return [*found]


def check_related(
    olds: Sequence[ProfileData], news: Sequence[ProfileData], by: Grouping
) -> None:
    """Refuse profiles whose rows have little in common."""
    times: list[dict[tuple[str, str], int]] = []
    for name, runs in (("old", olds), ("new", news)):
        found: dict[tuple[str, str], int] = {}
        for row in (row for run in runs for row in run.rows(by)):
            if row.kind in _CALLED:
                key = row.name, row.class_name
                found[key] = found.get(key, 0) + max(row.self_ns, 1)
        if not found and by == "function":
            raise ValueError(
                f"functions were not measured in {name}: compare modules, or run "
                "compare --run with --by function"
            )
        if not found:
            raise ValueError(f"no module and no function was called in {name}")
        times.append(found)
    one, other = times
    shared = one.keys() & other.keys()
    shares = [
        sum(map(found.__getitem__, shared)) / sum(found.values()) for found in times
    ]
    if max(shares) < _RELATED:
        raise ValueError(
            f"these are not profiles of one program: only {len(shared)} of {len(one)} "
            f"and {len(other)} rows are in both, with {shares[0]:.0%} of the time of "
            f"old, {shares[1]:.0%} of that of new{_INSTEAD.get(by, '')}"
        )


def pairs_of(
    old: Sequence[ProfileData], new: Sequence[ProfileData]
) -> list[tuple[int, int]]:
    """Pairs of an old and a new run, one after the other, if runs took turns; else
    nothing."""
    began = [
        (min((each.started_ns for each in run.provenance), default=0), side, place)
        for side, runs in enumerate((old, new))
        for place, run in enumerate(runs)
    ]
    began.sort()
    if len(old) != len(new) or len(old) < 2 or not began[0][0]:
        return []
    pairs = [sorted(pair) for pair in zip(began[::2], began[1::2], strict=True)]
    by_side = [sorted((side, place) for _, side, place in pair) for pair in pairs]
    if any([side for side, _ in pair] != [0, 1] for pair in by_side):
        return []
    return [(one, other) for (_, one), (_, other) in by_side]
