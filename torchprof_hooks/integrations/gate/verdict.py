"""Whether a step became slower, and which modules: by more than chance explains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from torchprof_hooks.integrations.gate.baseline import STEP, Run
from torchprof_hooks.reports.time_tree import without_numbers

#: Modules that take less of the step are looked at together with those of their kind;
#: if all of these take less, too, only as parts of the step.
_LEAST_SHARE: Final = 0.02
#: What does not make a step slower by that much is not told.
_LEAST_EXCESS: Final = 0.004
WHOLE: Final = "(whole step)"


class Row(NamedTuple):
    """A module, or several, in both measurements. All times are in relation to the
    reference.

    old: median of the runs of the baseline.
    limit: what is above it is slower: higher than the median by more than the
        tolerance, and higher than the highest run by what runs differ by.
    new: the lowest of the measurements now.
    share: of the step, in the baseline.
    """

    name: str
    old: float
    limit: float
    new: float
    share: float

    @property
    def is_slower(self) -> bool:
        return self.new > self.limit


class Verdict(NamedTuple):
    """The result of `judge`.

    rows: the slower ones first, of these the largest excess; then by their shares.
    added, gone: rows that only the new runs have, or only the baseline.
    """

    rows: tuple[Row, ...]
    added: tuple[str, ...]
    gone: tuple[str, ...]

    @property
    def slower(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.is_slower)


def judge(old: Sequence[Run], new: Sequence[Run], tolerance: float) -> Verdict:
    """Compare runs with those of a baseline.

    A row is slower only if it is in each of the new runs: they are of processes of
    their own, so what is chance in one of them is not in the next.

    tolerance: 0.05 is 5 %.
    """
    then, now = _names(old), _names(new)
    groups = _groups(old, then & now)
    olds, news = _ratios(old, groups), _ratios(new, groups)
    whole = median(olds[WHOLE])
    rows = [
        Row(
            name,
            median(olds[name]),
            _limit(olds[name], tolerance, _LEAST_EXCESS * whole),
            min(news[name]),
            median(olds[name]) / whole if whole else 0.0,
        )
        for name in olds
    ]
    rows.sort(key=_place)
    return Verdict(tuple(rows), tuple(sorted(now - then)), tuple(sorted(then - now)))


def _limit(olds: Sequence[float], tolerance: float, least_excess: float) -> float:
    """See `Row`. With five runs, and four more that would all have to be above it, that
    is not chance, unless the machine does more besides than it did at that time."""
    middle, spread = median(olds), max(olds) - min(olds)
    return max(middle * (1 + tolerance), max(olds) + spread, middle + least_excess)


def _place(row: Row) -> tuple[bool, bool, float]:
    """The whole step is last among what is slower, since whatever is slower is a part
    of it, and first among the others."""
    weight = row.new - row.old if row.is_slower else row.share
    return not row.is_slower, row.is_slower == (row.name == WHOLE), -weight


def _names(runs: Iterable[Run]) -> set[str]:
    return {name for run in runs for name in run.rows}


def _groups(runs: Sequence[Run], names: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """By the name of a row of the verdict, the rows of runs that are in it."""
    owns = {name: median([_own(run, name) for run in runs]) for name in names}
    least = _LEAST_SHARE * sum(owns.values())
    owns.pop(STEP, None)  # its own time is no module's: it is a part of the whole
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(owns):
        kinds[name if owns[name] >= least else _kind(runs, name)].append(name)
    return {
        kind: members
        for kind, members in kinds.items()
        if sum(owns[name] for name in members) >= least
    }


def _kind(runs: Sequence[Run], name: str) -> str:
    """Layers of one class whose names differ in numbers."""
    kind = without_numbers(name)
    classes = (run.rows[name].class_name for run in runs if name in run.rows)
    return name if kind == name else f"{kind}: {next(classes)}"


def _own(run: Run, name: str) -> float:
    return run.rows[name].own_ns / run.reference_ns if name in run.rows else 0.0


def _ratios(
    runs: Sequence[Run], groups: Mapping[str, Sequence[str]]
) -> Mapping[str, list[float]]:
    """Of the groups, and of the whole step, which has all that a run has."""
    ratios = {
        row: [sum(_own(run, name) for name in names) for run in runs]
        for row, names in groups.items()
    }
    return {**ratios, WHOLE: [sum(_own(r, name) for name in r.rows) for r in runs]}
