"""Compares two profiles of one program, row by row, and tells changes from noise."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, sqrt
from statistics import NormalDist
from typing import Final, Literal, NamedTuple

from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import Grouping, Phase
from torchprof_hooks.profiles.totals import Totals

#: The probability that a comparison calls any of its rows slower by chance alone. (In a
#: simulation of 20 rows it was between 0.2 % and 2.2 %: without the slowest call, calls
#: look a little more alike than they are.)
RISK: Final = 0.01

#: With fewer calls than this, the mean includes the slowest call.
_ENOUGH_CALLS: Final = 3

#: The name of a row, and a phase.
RowPhase = tuple[str, Phase]


class MeanDuration(NamedTuple):
    """The mean duration of calls, with the calls that they made.

    calls: how many there were.
    averaged: how many of them the mean is over, as far as they were measured.
    error_ns2: the square of the mean's standard error (inf: `averaged` is below 2).
    """

    calls: int
    averaged: int
    mean_ns: float
    error_ns2: float


@dataclass(frozen=True, slots=True)
class Change:
    """The calls of one row in one phase, in both profiles.

    noise_ns: how much the means may differ by chance (inf: one of them is over fewer
        than two measured calls, so that its spread is not known).
    threshold: a smaller difference, as a share of the old mean, does not matter.
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
    def verdict(self) -> Literal["slower", "faster", ""]:
        """Whether the calls became slower or faster, "" if that does not matter."""
        if not self.matters:
            return ""
        return "slower" if self.difference_ns > 0 else "faster"

    @property
    def is_slower(self) -> bool:
        return self.verdict == "slower"

    @property
    def is_faster(self) -> bool:
        return self.verdict == "faster"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of `compare`.

    changes: of rows and phases with calls in both profiles, the most expensive first.
    gone, added: rows and phases with calls only in the old, or only in the new profile.
    """

    old: ProfileData
    new: ProfileData
    by: Grouping
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
    old: ProfileData, new: ProfileData, by: Grouping = "module", threshold: float = 0.05
) -> Comparison:
    """Compare how long calls take, for each row of `Profile.rows(by)` and each phase.

    It compares mean durations on the host, with inner calls: only of these is the
    spread known. The numbers of steps and of calls may differ. A row is slower if its
    mean grew by more than the threshold, and by more than chance explains (Welch's
    t-test, one-sided; the risk for the whole table is divided equally among its rows).
    Time outside of calls, and that of the profiler itself, is not compared.

    Where only some steps were measured, the spread is that of the calls in these steps.

    What changes from one run to the next, such as the load of the machine, does not
    show in the spread within one run. It does in that of a few runs merged.

    threshold: 0.05 is 5 %.

    Raises:
        ValueError: unknown `by`.
    """
    befores, afters = _means(old, by), _means(new, by)
    shared = [key for key in befores if key in afters]
    changes: list[Change] = []
    for key in shared:
        before, after = befores[key], afters[key]
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


def _means(profile: ProfileData, by: Grouping) -> dict[RowPhase, MeanDuration]:
    """The mean duration of each row and phase that was called."""
    share = profile.measured.share
    return {
        (row.name, phase): mean_duration(totals, share)
        for row in profile.rows(by)
        if row.kind != "profiler"
        for phase, totals in row.phases.items()
        if totals.calls > 0
    }


def mean_duration(totals: Totals, share: float = 1.0) -> MeanDuration:
    """The mean over all calls but the slowest.

    share: the share of the calls that were measured. The others were scaled from these,
        so they do not make the mean more certain.

    The slowest call is mostly the first one, which allocates, chooses algorithms or
    compiles. In a short run it would outweigh all others.
    """
    count, total, squares = totals.calls, totals.duration_ns, totals.squares_ns2
    if count >= _ENOUGH_CALLS and totals.max_ns > totals.mean_ns:
        count -= 1
        total -= totals.max_ns
        squares -= totals.max_ns**2
    averaged = round(share * count)
    if averaged < 2:
        return MeanDuration(totals.calls, averaged, totals.mean_ns, inf)
    # In whole numbers, which are exact: the difference of two large ones is small.
    deviations = max(count * squares - total**2, 0)
    error_ns2 = deviations / (count**2 * (averaged - 1))
    return MeanDuration(totals.calls, averaged, total / count, error_ns2)


def noise_bound_ns(old: MeanDuration, new: MeanDuration, risk: float) -> float:
    """The least difference of the means that chance does not explain: Welch's t-test.

    Chance alone exceeds it in one direction with a probability of `risk`, if the calls
    of a run differ independently of each other.
    """
    error_ns2 = old.error_ns2 + new.error_ns2
    if error_ns2 in (0, inf):
        return error_ns2
    # Shares, since squares of `error_ns2` may be too large for floating point.
    parts = [(mean.error_ns2 / error_ns2, mean.averaged - 1) for mean in (old, new)]
    freedom = 1 / sum(part**2 / others for part, others in parts)
    return _t_quantile(risk, freedom) * sqrt(error_ns2)


def _t_quantile(risk: float, freedom: float) -> float:
    """The value that Student's t exceeds with a probability of `risk`, by Wallace's
    approximation: too high below 5 degrees of freedom, by 3 % at 4 and a fifth at 2.
    """
    z = -NormalDist().inv_cdf(risk) * (8 * freedom + 3) / (8 * freedom + 1)
    return sqrt(freedom * (exp(z**2 / freedom) - 1))
