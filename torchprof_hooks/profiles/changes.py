"""What became slower or faster between runs before and after a change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from math import inf, log1p
from statistics import fmean, median_low
from typing import Final, Literal, NamedTuple

from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping, Phase
from torchprof_hooks.profiles.run_times import STEP, Measure, RowPhase

#: What the change that all rows have in common is: the "machine", which was faster or
#: slower, so that the change is taken out of all rows; the "program", since the runs
#: took turns, and chance does not explain it; or "unknown", of too few rows.
Cause = Literal["machine", "program", "unknown"]


class Together(NamedTuple):
    """The change that all rows have in common.

    change: by which share calls became slower; 0 if that is not known.
    noise: what chance explains of that (inf: not known, as runs did not take turns).
    cause: see `Cause`.
    """

    change: float = 0.0
    noise: float = inf
    cause: Cause = "unknown"


UNKNOWN: Final = Together()


@dataclass(frozen=True, slots=True)
class Change:
    """The calls of one row in one phase, before and after.

    measure: what of the calls is compared: the shortest of a run, or their mean, less
        its standard error, which leaves out what interrupts single calls. Both are
        looked at, and this is the one that tells more.
    old_ns, new_ns: that time of a call, with inner calls; the geometric mean of runs.
    old_calls, new_calls: how many calls there were in all runs.
    relative_change: by which share calls became slower. If the machine was faster or
        slower, that is taken out.
    noise: the share that chance explains (inf: not known).
    threshold: a smaller share does not matter.
    """

    name: str
    phase: Phase | Literal[""]
    measure: Measure
    old_ns: float
    new_ns: float
    old_calls: int
    new_calls: int
    relative_change: float
    noise: float
    threshold: float

    @property
    def difference_ns(self) -> float:
        """By how much longer calls became."""
        return self.relative_change * self.old_ns

    @property
    def comparable_ns(self) -> float:
        """The time now, less what the machine became slower."""
        return self.old_ns + self.difference_ns

    @property
    def verdict(self) -> Literal["slower", "faster", ""]:
        """Whether the calls became slower or faster, beyond noise and threshold."""
        change = self.relative_change
        if abs(change) <= self.threshold or abs(log1p(change)) <= log1p(self.noise):
            return ""
        return "slower" if change > 0 else "faster"

    @property
    def evidence(self) -> float:
        """By how many times the noise the calls changed, as logarithms."""
        noise = log1p(self.noise)
        return abs(log1p(self.relative_change)) / noise if noise else inf

    @property
    def is_slower(self) -> bool:
        return self.verdict == "slower"

    @property
    def is_faster(self) -> bool:
        return self.verdict == "faster"


@dataclass(frozen=True)
class ComparisonData:
    """The result of `compare`.

    olds, news: the runs of either side; in pairs, if they took turns.
    in_turns: whether old and new runs took turns, so that the machine was the same for
        both.
    layers: for each module of which there are several, the name of their row.
    together: what all rows have in common.
    changes: of rows and phases with calls in all runs, the most expensive first; with
        rows of all layers of a kind, ``Net.blocks.*.norm (Norm)``.
    visible: the least share by which a row could have changed so that this would have
        been found in 19 of 20 comparisons; for rows with half of the time. inf if that
        is not known.
    gone, added: rows and phases with calls only in old, or only in new runs.
    """

    olds: Sequence[ProfileData]
    news: Sequence[ProfileData]
    by: Grouping
    threshold: float
    in_turns: bool = False
    layers: Mapping[str, str] = field(default_factory=dict)
    together: Together = UNKNOWN
    changes: tuple[Change, ...] = ()
    visible: float = inf
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
        return tuple(change for change in self.printed if change.is_slower)

    @property
    def faster(self) -> tuple[Change, ...]:
        return tuple(change for change in self.printed if change.is_faster)

    @cached_property
    def printed(self) -> tuple[Change, ...]:
        """The changes to print: layers of one kind collapse into their common row,
        unless their verdict differs from its."""
        inside = defaultdict[RowPhase, list[Change]](list)
        for change in self.changes:
            if change.name in self.layers:
                inside[self.layers[change.name], change.phase].append(change)
        by_key = {(change.name, change.phase): change for change in self.changes}
        alike = {
            key: _are_alike(found)
            or all(each.verdict != by_key[key].verdict for each in found)
            for key, found in inside.items()
        }

        def is_printed(change: Change) -> bool:
            key = (change.name, change.phase)
            if key in inside:
                return alike[key] or not change.verdict
            if change.name not in self.layers:
                return True
            key = (self.layers[change.name], change.phase)
            is_said = alike[key] and change.verdict == by_key[key].verdict
            return bool(change.verdict) and not is_said

        return tuple(filter(is_printed, self.changes))

    @cached_property
    def steps(self) -> int:
        """How many steps of the new runs were compared."""
        return sum(each.new_calls for each in self.changes if each.name == STEP)

    def in_step_ns(self, change: Change) -> float:
        """What the change makes of a step; of a call, if there were no steps."""
        return (
            change.difference_ns * change.new_calls / (self.steps or change.new_calls)
        )

    @property
    def is_guess(self) -> bool:
        """Whether there is one run on a side: how much such runs differ by chance is
        then guessed from how much rows differ from each other."""
        return min(len(self.olds), len(self.news)) < 2


def _are_alike(layers: Sequence[Change]) -> bool:
    """Whether their mean tells how layers of a kind changed: more than half of them
    changed by half of it, or more."""
    shares = [log1p(each.relative_change) for each in layers]
    mean = fmean(shares)
    return 2 * median_low(share * mean for share in shares) >= mean * mean
