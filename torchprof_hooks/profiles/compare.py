"""Compares runs of one program before and after a change, row by row, and separates
changes from noise: from how much runs differ of which nothing was changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import reduce
from math import exp, expm1, hypot, inf, log, log1p
from statistics import fmean
from typing import Final, NamedTuple

from torchprof_hooks.profiles.changes import (
    UNKNOWN,
    Cause,
    Change,
    ComparisonData,
    Together,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping
from torchprof_hooks.profiles.run_noise import (
    Values,
    difference_of,
    differences_of,
    in_common,
    weighted_median,
)
from torchprof_hooks.profiles.run_sides import check_related, checked_runs, pairs_of
from torchprof_hooks.profiles.run_times import (
    MEASURES,
    STEP,
    CallTimes,
    Measure,
    RowPhase,
    Sides,
    call_times,
    layers_of,
    with_layers,
)

#: The probability that a comparison calls anything slower by chance alone.
RISK: Final = 0.005
#: The part of it that is for the whole step, which is what people ask first.
_RISK_OF_STEP: Final = 0.25
#: Rows of fewer modules do not tell the machine's speed from a change of one of them.
_ENOUGH_NAMES: Final = 4
#: Shorter rows, as a share of the time of all, are too noisy to tell it.
_LEAST_SHARE: Final = 0.01
#: The logarithm of a change beyond all that happens.
_MOST: Final = 100.0

#: One or several runs.
Runs = ProfileData | Sequence[ProfileData]

_NOTHING: Final = Together(0.0, 0.0)


def compare(
    old: Runs, new: Runs, by: Grouping = "module", threshold: float = 0.05
) -> ComparisonData:
    """Compare how long calls take, for each row of `Profile.rows(by)` and each phase,
    and for a whole step.

    It compares durations on the host, with inner calls; after the start-up, if that is
    known. The numbers of steps and of calls may differ. A row is slower if its calls
    take longer by more than the threshold, and by more than runs of unchanged code
    differ, which two or more runs on either side tell. The risk that any row is called
    slower by chance is `RISK`. Both the shortest call of each run and the mean are
    looked at: what else the machine does hardly touches the former, but some changes
    are in some of the calls only.

    What all rows have in common is the machine's speed, and taken out. If runs took
    turns (old, new, new, old, ...), it is known whether the machine explains that; if
    not, it is a change of the program, and left in.

    threshold: 0.05 is 5 %.

    Raises:
        TypeError: what is to be compared is no profile.
        ValueError: unknown `by`; a side has no runs, several ranks of one, or one of
            them twice; or the profiles are not of one program.
    """
    olds, news = checked_runs("old", old), checked_runs("new", new)
    check_related(olds, news, by)
    pairs = pairs_of(olds, news)
    if pairs:
        olds = [olds[one] for one, _ in pairs]
        news = [news[other] for _, other in pairs]
    layers = reduce(dict.__or__, (layers_of(run, by) for run in (*olds, *news)))
    measured = [
        [with_layers(call_times(run, by), layers) for run in side]
        for side in (olds, news)
    ]
    called = [Counter(key for run in side for key in run) for side in measured]
    times: dict[RowPhase, Sides] = {
        key: ([run[key] for run in measured[0]], [run[key] for run in measured[1]])
        for key in measured[0][0]
        if called[0][key] == len(olds) and called[1][key] == len(news)
    }
    shortest, mean = (_judged(times, each, bool(pairs), threshold) for each in MEASURES)
    # Of a row without a shortest call, there is the mean alone.
    changes = [
        max(filter(None, (shortest.changes.get(key), change)), key=_weight)
        for key, change in mean.changes.items()
    ]
    return ComparisonData(
        olds,
        news,
        by,
        threshold,
        bool(pairs),
        layers,
        max(shortest.together, mean.together, key=_certainty),
        tuple(changes),
        min(shortest.visible, mean.visible),
        gone=tuple(key for key in called[0] if key not in called[1]),
        added=tuple(key for key in called[1] if key not in called[0]),
    )


# What changed


class _Judged(NamedTuple):
    """What follows from one measure. See `ComparisonData`."""

    together: Together
    changes: dict[RowPhase, Change]
    visible: float


def _weight(change: Change) -> tuple[bool, float, float]:
    """How much a measure says of a row: first of all, whether there is a verdict."""
    return bool(change.verdict), change.evidence if change.verdict else 0, -change.noise


def _certainty(together: Together) -> int:
    """How much a measure says of all rows."""
    return ("unknown", "machine", "program").index(together.cause)


def _judged(
    times: Mapping[RowPhase, Sides], measure: Measure, in_turns: bool, threshold: float
) -> _Judged:
    """Compare one measure of all rows that have it."""
    times = {
        key: sides
        for key, sides in times.items()
        if all(each.by(measure) > 0 for side in sides for each in side)
    }
    risk = RISK / len(MEASURES) / 2  # another half is for what rows have in common
    tellers = _tellers(times)
    logs = {
        key: [log(each.by(measure)) for side in sides for each in side]
        for key, sides in times.items()
    }
    olds = len(next(iter(times.values()))[0]) if times else 0
    common, together = _in_common([logs[key] for key in tellers], olds, in_turns, risk)
    split = _pairs_of if in_turns and not tellers else _sides_of
    differences = differences_of(
        [split(_less(row, common), olds) for row in logs.values()],
        [fmean(each.total_ns for each in (*old, *new)) for old, new in times.values()],
    )
    found = dict(zip(times, differences, strict=True))
    step = (STEP, "")
    of_step = _RISK_OF_STEP * risk if step in times else 0.0
    of_rows = (risk - of_step) / max(len(times) - (step in times), 1)
    # What is not taken out is part of a change, and so is its noise.
    left = together if together.cause == "program" else _NOTHING
    changes = {
        key: _change(
            key,
            measure,
            sides,
            (
                found[key].mean + log1p(left.change),
                hypot(
                    found[key].noise(of_step if key == step else of_rows),
                    log1p(left.noise),
                ),
            ),
            threshold,
        )
        for key, sides in times.items()
    }
    visible = weighted_median(
        [
            (found[key].visible(of_rows, log1p(threshold)), old[0].total_ns)
            for key, (old, _) in times.items()
            if old[0].is_own
        ]
    )
    return _Judged(together, changes, _share(visible))


def _in_common(
    rows: Sequence[Values], olds: int, in_turns: bool, risk: float
) -> tuple[Values, Together]:
    """What rows have in common: in each run, to be taken out; and as a change.

    rows: those that tell; none if they are too few.
    """
    if not rows:
        return (), UNKNOWN
    common = in_common(rows)
    split = _pairs_of if in_turns else _sides_of
    shared = difference_of(split(common, olds))
    # Between runs at other times, a machine may differ by more than within each side.
    noise = shared.noise(risk) if in_turns else inf
    cause: Cause = "program" if abs(shared.mean) > noise else "machine"
    return common, Together(expm1(shared.mean), _share(noise), cause)


def _less(row: Values, common: Values) -> Values:
    """The values of a row, less what all have in common, if that is known."""
    if not common:
        return row
    return [value - speed for value, speed in zip(row, common, strict=True)]


def _sides_of(values: Values, olds: int) -> list[Values]:
    return [values[:olds], values[olds:]]


def _pairs_of(values: Values, olds: int) -> list[Values]:
    """The differences of pairs, as one group."""
    pairs = zip(values[:olds], values[olds:], strict=True)
    return [[new - old for old, new in pairs]]


def _tellers(times: Mapping[RowPhase, Sides]) -> list[RowPhase]:
    """The rows that tell the machine's speed: those with time of their own, none of
    which contains another. None if they are so few that one of them could be it."""
    own = {
        key: fmean(each.total_ns for each in (*old, *new))
        for key, (old, new) in times.items()
        if old[0].is_own
    }
    least_ns = _LEAST_SHARE * sum(own.values())
    for keys in ([key for key in own if own[key] >= least_ns], [*own]):
        if len({name for name, _ in keys}) >= _ENOUGH_NAMES:
            return keys
    return []


def _change(
    key: RowPhase,
    measure: Measure,
    sides: Sides,
    difference: tuple[float, float],
    threshold: float,
) -> Change:
    """The change of a row. difference: it and its noise, as logarithms."""
    (old, new), (change, noise) = sides, difference
    return Change(
        *key,
        measure,
        _mean_ns(old, measure),
        _mean_ns(new, measure),
        sum(each.calls for each in old),
        sum(each.calls for each in new),
        _share(change),
        _share(noise),
        threshold,
    )


def _mean_ns(times: Sequence[CallTimes], measure: Measure) -> float:
    """The geometric mean."""
    return exp(fmean(log(each.by(measure)) for each in times))


def _share(logarithm: float) -> float:
    """0.1 for the logarithm of 1.1; inf for more than floating point has."""
    return expm1(logarithm) if logarithm < _MOST else inf
