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

#: Modules that take less of the step are looked at together with those of their kind;
#: if all of these take less, too, only as parts of the step.
_LEAST_SHARE: Final = 0.02
#: What does not make a step slower by that much is not told.
_LEAST_EXCESS: Final = 0.004
#: So many standard deviations are no chance: a step has many modules, and is tested for
#: years.
_DEVIATIONS: Final = 4.5
#: Above this part of the limit, it is worth looking at more processes.
_SUSPECT: Final = 0.4
WHOLE: Final = "(whole step)"


class Row(NamedTuple):
    """A module, or several.

    before_ns: what the code of the baseline would take at the speed that the machine
        has now.
    now_ns: what it takes now. Both are means of processes.
    limit: as a share: 0.05 is 5 %. What takes longer than `before_ns` by more is
        slower: the tolerance, or what chance explains.
    share: of the step, before.
    """

    name: str
    before_ns: float
    now_ns: float
    limit: float
    share: float

    @property
    def excess(self) -> float:
        """By how much it is slower, as a share."""
        return self.now_ns / self.before_ns - 1

    @property
    def is_slower(self) -> bool:
        return self.excess > self.limit

    @property
    def is_suspect(self) -> bool:
        """More processes may show that it is slower."""
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

    They are of processes of their own, so what is chance in one of them is not in the
    next.

    tolerance: 0.05 is 5 %.
    runs: how many new ones there are to be at the end: the limits are for so many.
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
    """Its limit is chance alone, and its share is not known yet.

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
    """Own time of all of them; 1 at least."""
    names = run.rows if members is None else members
    return max(sum(run.rows[name].own_ns for name in names if name in run.rows), 1)


def _place(row: Row) -> tuple[bool, bool, float]:
    """The whole step is last among what is slower, since whatever is slower is a part
    of it, and first among the others."""
    weight = row.now_ns - row.before_ns if row.is_slower else row.share
    return not row.is_slower, row.is_slower == (row.name == WHOLE), -weight


def _names(runs: Iterable[Run]) -> set[str]:
    return {name for run in runs for name in run.rows}


def _groups(runs: Sequence[Run], names: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """By the name of a row of the verdict, the rows of runs that are in it."""
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
    """Layers of one class whose names differ in numbers."""
    kind = without_numbers(name)
    classes = (run.rows[name].class_name for run in runs if name in run.rows)
    return name if kind == name else f"{kind}: {next(classes)}"


def _share(run: Run, name: str) -> float:
    """Of a run, what a row takes itself."""
    return _time_ns(run, [name]) / _time_ns(run, None)
