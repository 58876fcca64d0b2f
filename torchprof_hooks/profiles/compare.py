"""Two profiles of one program, row by row: what became slower, and what is noise?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.profile import Profile
from torchprof_hooks.profiles.significance import (
    MeanDuration,
    mean_duration,
    noise_bound_ns,
)
from torchprof_hooks.profiles.totals import Totals

#: The probability that chance alone makes any row of a comparison slower. (In a
#: simulation of 20 rows it was between 0.2 % and 2.2 %: leaving out the slowest call
#: makes the others look a little more alike than they are.)
RISK: Final = 0.01

#: The name of a row and a phase: what is compared.
RowPhase = tuple[str, Phase]


@dataclass(frozen=True, slots=True)
class Change:
    """The calls of one row in one phase, in both profiles.

    noise_ns: difference of the means up to which it may be chance (inf: one of the two
        has a single call, so that nothing is known of its spread).
    threshold: difference in relation to the old mean up to which it does not matter.
    """

    name: str
    phase: Phase
    old: MeanDuration
    new: MeanDuration
    noise_ns: float
    threshold: float

    @property
    def difference_ns(self) -> float:
        """By how much the mean duration grew."""
        return self.new.mean_ns - self.old.mean_ns

    @property
    def matters(self) -> bool:
        """Whether the difference is beyond both the threshold and noise."""
        least_ns = max(self.threshold * self.old.mean_ns, self.noise_ns)
        return abs(self.difference_ns) > least_ns

    @property
    def is_slower(self) -> bool:
        return self.matters and self.difference_ns > 0

    @property
    def is_faster(self) -> bool:
        return self.matters and self.difference_ns < 0


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found.

    changes: of what was called in both, the most expensive first.
    gone, added: what was called only in the old, or only in the new one.
    """

    old: Profile
    new: Profile
    by: str
    threshold: float
    changes: tuple[Change, ...]
    gone: tuple[RowPhase, ...]
    added: tuple[RowPhase, ...]

    @property
    def slower(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.is_slower)

    @property
    def faster(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.is_faster)


def compare(
    old: Profile, new: Profile, by: str = "module", threshold: float = 0.05
) -> Comparison:
    """Compare what calls take, for each row of `Profile.rows(by)` and each phase.

    Compared are mean durations on the host, with inner calls: only of these is the
    spread known. Numbers of steps or calls need not be the same. A row is slower if its
    mean grew by more than the threshold, and by more than chance explains (Welch's
    t-test, one-sided; the risk is that of the whole table, shared out equally). Time
    that is not spent in calls, and that of the profiler itself, is not compared.

    What changes from one run to the next, such as the load of the machine, is not in
    the spread within a run. It is in that of a few runs merged.

    threshold: 0.05 is 5 %.

    Raises:
        ValueError: unknown `by`.
    """
    befores, afters = _calls(old, by), _calls(new, by)
    shared = [key for key in befores if key in afters]
    changes: list[Change] = []
    for key in shared:
        before, after = mean_duration(befores[key]), mean_duration(afters[key])
        noise_ns = noise_bound_ns(before, after, RISK / len(shared))
        changes.append(Change(*key, before, after, noise_ns, threshold))
    return Comparison(
        old,
        new,
        by,
        threshold,
        tuple(changes),
        gone=tuple(key for key in befores if key not in afters),
        added=tuple(key for key in afters if key not in befores),
    )


def _calls(profile: Profile, by: str) -> dict[RowPhase, Totals]:
    return {
        (row.name, phase): totals
        for row in profile.rows(by)
        if row.kind != "profiler"
        for phase, totals in row.phases.items()
        if totals.calls > 0
    }
