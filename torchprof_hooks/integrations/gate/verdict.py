"""Whether a step became slower, and which modules: by more than chance explains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import exp, expm1, log
from statistics import fmean, median
from typing import Final, NamedTuple

from torchprof_hooks.integrations.gate.baseline import STEP, Run
from torchprof_hooks.integrations.gate.chance import Point, difference
from torchprof_hooks.reports.time_tree import without_numbers

#: Modules with a smaller share of the step are judged together with those of their
#: kind; if these have a smaller share even together, only as parts of the step.
_LEAST_SHARE: Final = 0.02
#: A row that does not make the whole step slower by this share is not reported.
_LEAST_EXCESS: Final = 0.004
#: A difference of so many standard deviations is no chance. They are many, since a step
#: has many modules, and is tested for years.
_DEVIATIONS: Final = 4.5
#: Above this part of its limit, a row is worth measuring in more processes.
_SUSPECT: Final = 0.4
WHOLE: Final = "(whole step)"


class Row(NamedTuple):
    """A module, or several.

    before_ns: what the code of the baseline would take at the speed that the machine
        has now.
    now_ns: what it takes now. Both are means of processes.
    limit: by which share `now_ns` may be above `before_ns` (0.05 is 5 %): the largest
        of the tolerance, of what chance explains, and of what matters to the step.
    share: the share of the step that the row had before.
    """

    name: str
    before_ns: float
    now_ns: float
    limit: float
    share: float

    @property
    def excess(self) -> float:
        """By how much the row is slower, as a share."""
        return self.now_ns / self.before_ns - 1

    @property
    def is_slower(self) -> bool:
        return self.excess > self.limit

    @property
    def is_suspect(self) -> bool:
        """Whether more processes may show that the row is slower."""
        return self.excess > _SUSPECT * self.limit


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

    @property
    def is_open(self) -> bool:
        """Whether more processes may show that anything is slower."""
        return any(row.is_suspect for row in self.rows)


def judge(
    old: Sequence[Run], new: Sequence[Run], tolerance: float, runs: int
) -> Verdict:
    """Compare runs with those of a baseline.

    Each run is that of another process, so that chance makes them differ independently.

    tolerance: 0.05 is 5 %.
    runs: how many new runs there are to be at the end: the limits are for so many.
    """
    then, now = _names(old), _names(new)
    groups = _groups(old, then & now)
    rows = [_row(name, groups[name], old, new, runs) for name in groups]
    whole = _row(WHOLE, None, old, new, runs)
    least_ns = _LEAST_EXCESS * whole.before_ns
    rows = [
        row._replace(
            limit=max(row.limit, tolerance, least_ns / row.before_ns),
            share=row.before_ns / whole.before_ns,
        )
        for row in (*rows, whole)
    ]
    rows.sort(key=_place)
    return Verdict(tuple(rows), tuple(sorted(now - then)), tuple(sorted(then - now)))


def _row(
    name: str,
    members: Sequence[str] | None,
    old: Sequence[Run],
    new: Sequence[Run],
    runs: int,
) -> Row:
    """A row whose limit is chance alone, and whose share is not known yet.

    members: None for all that a run has.
    """
    olds = [_point(run, members) for run in old]
    news = [_point(run, members) for run in new]
    found = difference(olds, news, runs)
    now_ns = exp(fmean(log(_time_ns(run, members)) for run in new))
    limit = expm1(_DEVIATIONS * found.deviation)
    return Row(name, now_ns / exp(found.excess), now_ns, limit, 0.0)


def _point(run: Run, members: Sequence[str] | None) -> Point:
    time_ns = _time_ns(run, members)
    arithmetic = log(run.arithmetic_ns)
    return Point(log(run.memory_ns) - arithmetic, log(time_ns) - arithmetic)


def _time_ns(run: Run, members: Sequence[str] | None) -> int:
    """Nanoseconds of own time of all members; 1 at least."""
    names = run.rows if members is None else members
    return max(sum(run.rows[name].own_ns for name in names if name in run.rows), 1)


def _place(row: Row) -> tuple[bool, bool, float]:
    """Sort key: slower rows first. The whole step comes last among these, since they
    are parts of it, and first among the others."""
    weight = row.now_ns - row.before_ns if row.is_slower else row.share
    return not row.is_slower, row.is_slower == (row.name == WHOLE), -weight


def _names(runs: Iterable[Run]) -> set[str]:
    return {name for run in runs for name in run.rows}


def _groups(runs: Sequence[Run], names: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """The rows of runs that make up each row of the verdict, by its name."""
    owns = {name: median([_share(run, name) for run in runs]) for name in names}
    owns.pop(STEP, None)  # its own time is no module's: it is a part of the whole
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(owns):
        is_large = owns[name] >= _LEAST_SHARE
        kinds[name if is_large else _kind(runs, name)].append(name)
    return {
        kind: members
        for kind, members in kinds.items()
        if sum(owns[name] for name in members) >= _LEAST_SHARE
    }


def _kind(runs: Sequence[Run], name: str) -> str:
    """A name that layers of one class share if theirs differ only in numbers."""
    kind = without_numbers(name)
    classes = (run.rows[name].class_name for run in runs if name in run.rows)
    return name if kind == name else f"{kind}: {next(classes)}"


def _share(run: Run, name: str) -> float:
    """The share that a row's own time has in a run."""
    return _time_ns(run, [name]) / _time_ns(run, None)
