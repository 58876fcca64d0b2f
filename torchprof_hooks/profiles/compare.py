"""Compares runs of one program before and after a change, row by row: slower is a row
of which every new run took longer than every old one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from itertools import compress
from math import comb
from statistics import median
from typing import Final, Literal, NamedTuple, TypeVar

from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping, Phase
from torchprof_hooks.profiles.run_times import (
    STEP,
    CallTimes,
    RowPhase,
    call_times,
    check_related,
    checked_runs,
    comparable,
    compared_part,
    layers_of,
    pairs_of,
    with_layers,
)

#: With fewer runs on a side, their order may be chance: then the sides also have to be
#: apart by as much as the runs of both sides differ.
ENOUGH_RUNS: Final = 7
#: With fewer, chance cannot be told from a change.
LEAST_RUNS: Final = 3
#: The machine has one speed in runs that take at most so many times the fastest one of
#: their side. In others it slows some modules down more than others.
_OF_ONE_SPEED: Final = 1.05
#: Others are left out where so many runs of a side are left.
_LEAST_LEFT: Final = 4
#: Rows of fewer modules do not tell the machine's speed from a change of one of them.
_ENOUGH_NAMES: Final = 4
#: Shorter rows, as a share of the time of all, are too noisy to tell it.
_LEAST_SHARE: Final = 0.01

T = TypeVar("T")

#: One or several runs.
Runs = ProfileData | Sequence[ProfileData]

#: Times of a row, one for each run.
_Times = Sequence[float]
_Verdict = Literal["slower", "faster", ""]


class Machine(NamedTuple):
    """What most rows have in common.

    change: by which share they became slower; 0 if that is not known.
    cause: "machine": it was faster or slower, and that is taken out of all rows;
        "program": runs took turns, and in each pair the new one was slower (or faster)
        by more than the threshold; "unknown": too few modules tell.
    """

    change: float = 0.0
    cause: Literal["machine", "program", "unknown"] = "unknown"


@dataclass(frozen=True, slots=True)
class Change:
    """The calls of one row in one phase, before and after.

    old_ns, new_ns: the time of a call, with inner calls: the median of the runs, of
        each of which the shortest call counts (see `CallTimes`). If one of them does
        not know that, as of modules in compiled code, the mean time in a step. If the
        machine was faster or slower, that is taken out.
    old_calls, new_calls: how many calls there were in all runs.
    spread: by which share the slowest run of a side takes longer than its fastest one.
    verdict: "slower", if every new run took longer than every old one, and the median
        by more than the threshold; "faster"; or "".
    is_mean: whether times are the mean of a step: no shortest call is known.
    """

    name: str
    phase: Phase | Literal[""]
    old_ns: float
    new_ns: float
    old_calls: int
    new_calls: int
    spread: float
    verdict: _Verdict
    is_mean: bool = False

    @property
    def difference_ns(self) -> float:
        """By how much longer calls became."""
        return self.new_ns - self.old_ns

    @property
    def relative_change(self) -> float:
        """By which share calls became slower."""
        return self.new_ns / self.old_ns - 1


@dataclass(frozen=True)
class ComparisonData:
    """The result of `compare`.

    olds, news: the runs of either side; in pairs, if they took turns.
    left_out: how many others there were, in which (or in the other of a pair) the
        machine was slower.
    in_turns: whether old and new runs took turns, so that the machine was the same for
        both.
    layers: for each module of which there are several, the name of their row.
    machine: what most rows have in common.
    changes: of rows and phases with calls in all runs, the most expensive first; with
        rows of all layers of a kind, ``Net.blocks.*.norm: 12 Norm``.
    gone, added: rows and phases with calls only in old, or only in new runs.
    """

    olds: Sequence[ProfileData]
    news: Sequence[ProfileData]
    by: Grouping
    threshold: float
    left_out: int = 0
    in_turns: bool = False
    layers: Mapping[str, str] = field(default_factory=dict)
    machine: Machine = Machine()  # noqa: RUF009 - it cannot be changed
    changes: tuple[Change, ...] = ()
    gone: tuple[RowPhase, ...] = ()
    added: tuple[RowPhase, ...] = ()

    @cached_property
    def old(self) -> ProfileData:
        """All old runs, merged."""
        return reduce(ProfileData.merge, self.olds)

    @cached_property
    def new(self) -> ProfileData:
        """All new runs, merged."""
        return reduce(ProfileData.merge, self.news)

    @property
    def slower(self) -> tuple[Change, ...]:
        return tuple(each for each in self.printed if each.verdict == "slower")

    @property
    def faster(self) -> tuple[Change, ...]:
        return tuple(each for each in self.printed if each.verdict == "faster")

    @cached_property
    def printed(self) -> tuple[Change, ...]:
        """The changes to print. Layers of a kind are one row, and those with another
        verdict rows of their own. If less than half of them changed by half as much as
        that row, it is left out, and they are rows."""
        inside = defaultdict[RowPhase, list[float]](list)
        for change in self.changes:
            if change.name in self.layers:
                key = self.layers[change.name], change.phase
                inside[key].append(change.relative_change)

        def is_of_most(change: Change) -> bool:
            every = inside.get((change.name, change.phase), [])
            alike = sum(2 * each / change.relative_change >= 1 for each in every)
            return 2 * alike > len(every) or not every

        together = {
            (change.name, change.phase): change.verdict
            for change in self.changes
            if not change.verdict or is_of_most(change)
        }

        def is_printed(change: Change) -> bool:
            if change.name not in self.layers:
                return (change.name, change.phase) in together
            key = self.layers[change.name], change.phase
            return change.verdict not in ("", together.get(key, ""))

        return tuple(filter(is_printed, self.changes))

    @cached_property
    def steps(self) -> int:
        """How many steps of the new runs were compared."""
        return sum(each.new_calls for each in self.changes if each.name == STEP)

    @cached_property
    def has_evaluations(self) -> bool:
        """Whether there are evaluation calls in between the steps."""
        every = map(compared_part, (*self.olds, *self.news))
        return any(part.step_times.evaluations for part in every)

    def in_step_ns(self, change: Change) -> float:
        """What the change makes of a step, with evaluation calls before it; of a call,
        if there were no steps."""
        calls = change.new_calls / (self.steps or change.new_calls)
        return change.difference_ns * calls

    @property
    def runs(self) -> int:
        """How many runs there are of the side that has fewer."""
        return min(len(self.olds), len(self.news))

    @property
    def is_guess(self) -> bool:
        """Whether there are too few runs to tell a change from chance."""
        return self.runs < LEAST_RUNS

    @property
    def chance(self) -> float:
        """How probable it is that all new runs of a row that did not change take longer
        than all old ones."""
        olds, news = len(self.olds), len(self.news)
        return 1 / comb(olds + news, news)


def compare(
    old: Runs, new: Runs, by: Grouping = "module", threshold: float = 0.05
) -> ComparisonData:
    """Compare how long calls take, for each row of `Profile.rows(by)` and each phase,
    and for a whole step.

    It compares durations on the host, with inner calls; after the start-up, if that is
    known. The numbers of steps and of calls may differ. A row is slower if each new run
    took longer than each old one, and the median of new runs longer than that of old
    ones by more than the threshold. With fewer than `ENOUGH_RUNS` on a side, the sides
    also have to be as far apart as the runs of both sides differ.

    The speed of the machine in each run, the median of the rows without inner calls, is
    taken out. If runs took turns (old, new, new, old, ...), and the new one was slower
    in each pair, it is a change of the program, and stays. Runs in which the machine
    was slower by more than 5 % are left out, if there are enough others.

    threshold: 0.05 is 5 %.

    Raises:
        TypeError: what is to be compared is no profile.
        ValueError: unknown `by`; a side has no runs, several ranks of one, or one of
            them twice; or the profiles are not of one program.
    """
    olds, news = checked_runs("old", old), checked_runs("new", new)
    pairs = pairs_of(olds, news)
    if pairs:
        olds = [olds[one] for one, _ in pairs]
        news = [news[other] for _, other in pairs]
    parts = [compared_part(run) for run in (*olds, *news)]
    check_related(*_sides(parts, len(olds)), by)
    layers = layers_of(parts, by)
    runs = [with_layers(call_times(part, by), layers) for part in parts]
    called: dict[RowPhase, list[CallTimes]] = {}
    for run in runs:
        for key, calls in run.items():
            called.setdefault(key, []).append(calls)
    times = {key: found for key, found in called.items() if len(found) == len(runs)}
    # Not the machine's speed, where code of some of the runs is compiled.
    alike = [key for key, f in times.items() if len({t.ns > 0 for t in f}) == 1]
    times = {key: comparable(found) for key, found in times.items()}
    before, now = (
        {key for run in side for key in run} for side in _sides(runs, len(olds))
    )
    speeds = _speeds({key: times[key] for key in alike})
    kept = _of_one_speed(speeds or [1.0] * len(runs), len(olds), bool(pairs))
    speeds = [*compress(speeds, kept)]
    times = {key: [*compress(found, kept)] for key, found in times.items()}
    keeps = _sides(kept, len(olds))
    olds, news = [*compress(olds, keeps[0])], [*compress(news, keeps[1])]
    count = len(olds)
    if speeds:  # in times of the old runs that count: their rows stay as measured
        usual = median(speeds[:count])
        speeds = [speed / usual for speed in speeds]
    machine = _machine(speeds, count, bool(pairs), threshold)
    if machine.cause == "program":
        now_slower = 1 + machine.change
        speeds[count:] = [speed / now_slower for speed in speeds[count:]]
    return ComparisonData(
        olds,
        news,
        by,
        threshold,
        kept.count(False),
        bool(pairs),
        layers,
        machine,
        tuple(
            _change(key, found, speeds or [1.0] * len(found), count, threshold)
            for key, found in times.items()
        ),
        gone=tuple(key for key in called if key not in now),
        added=tuple(key for key in called if key not in before),
    )


def _sides(values: Sequence[T], olds: int) -> tuple[Sequence[T], Sequence[T]]:
    return values[:olds], values[olds:]


def _speeds(times: Mapping[RowPhase, Sequence[CallTimes]]) -> list[float]:
    """How long rows take in each run, in times of their median run: the median of the
    rows with time of their own, none of which contains another. Nothing if these are so
    few that one of them could be it."""
    own = {
        key: sum(each.total_ns for each in found)
        for key, found in times.items()
        if found[0].is_own
    }
    least_ns = _LEAST_SHARE * sum(own.values())
    for keys in ([key for key in own if own[key] >= least_ns], [*own]):
        if len({name for name, _ in keys}) >= _ENOUGH_NAMES:
            rows = [[each.ns for each in times[key]] for key in keys]
            usual = [median(row) for row in rows]
            return [
                median(ns / one for ns, one in zip(run, usual, strict=True))
                for run in zip(*rows, strict=True)
            ]
    return []


def _of_one_speed(speeds: _Times, olds: int, in_turns: bool) -> list[bool]:
    """Which runs are compared: those in which the machine had one speed."""
    kept = [
        speed <= _OF_ONE_SPEED * min(side)
        for side in _sides(speeds, olds)
        for speed in side
    ]
    if in_turns:
        pairs = zip(*_sides(kept, olds), strict=True)
        kept = [all(pair) for pair in pairs] * 2
    is_enough = min(map(sum, _sides(kept, olds))) >= _LEAST_LEFT
    return kept if is_enough else [True] * len(kept)


def _machine(speeds: _Times, olds: int, in_turns: bool, threshold: float) -> Machine:
    if not speeds:
        return Machine()
    before, now = _sides(speeds, olds)
    if not in_turns:
        return Machine(median(now) / median(before) - 1, "machine")
    changes = [new / old - 1 for old, new in zip(before, now, strict=True)]
    change = median(changes)
    # Few pairs agree by chance: then they have to agree in size, too.
    least = 0.0 if len(changes) >= ENOUGH_RUNS else max(map(abs, changes)) / 2
    is_program = abs(change) > threshold
    is_program &= all(each * change > 0 and abs(each) >= least for each in changes)
    return Machine(change, "program" if is_program else "machine")


def _change(
    key: RowPhase,
    found: Sequence[CallTimes],
    speeds: _Times,
    olds: int,
    threshold: float,
) -> Change:
    times = [each.ns / speed for each, speed in zip(found, speeds, strict=True)]
    old, new = _sides(times, olds)
    old_calls, new_calls = (sum(t.calls for t in side) for side in _sides(found, olds))
    spreads = [max(side) / min(side) for side in (old, new)]
    return Change(
        *(*key, median(old), median(new), old_calls, new_calls, max(spreads) - 1),
        verdict=_verdict(old, new, spreads[0] * spreads[1], threshold),
        is_mean=found[0].is_mean,
    )


def _verdict(old: _Times, new: _Times, spread: float, threshold: float) -> _Verdict:
    change = median(new) / median(old) - 1
    if abs(change) <= threshold:
        return ""
    less, more = (old, new) if change > 0 else (new, old)
    apart = min(more) / max(less)
    if apart <= 1 or (min(len(old), len(new)) < ENOUGH_RUNS and apart < spread):
        return ""
    return "slower" if change > 0 else "faster"
