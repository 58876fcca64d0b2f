"""Whether the difference between two mean durations is more than chance."""

from __future__ import annotations

from math import exp, inf, sqrt
from statistics import NormalDist
from typing import Final, NamedTuple

from torchprof_hooks.profiles.totals import Totals

#: With fewer, no call is left out of a mean.
_ENOUGH_CALLS: Final = 3


class MeanDuration(NamedTuple):
    """The mean duration of calls, with the calls that they made.

    calls: how many there were.
    averaged: of how many it is the mean.
    error_ns2: the square of its standard error (inf: there was only one call).
    """

    calls: int
    averaged: int
    mean_ns: float
    error_ns2: float


def mean_duration(totals: Totals) -> MeanDuration:
    """The mean over all calls but the slowest.

    The slowest is mostly the first one, which allocates, chooses algorithms or
    compiles. In a short run it would outweigh what all others have in common.
    """
    count, total, squares = totals.calls, totals.duration_ns, totals.squares_ns2
    if count >= _ENOUGH_CALLS and totals.max_ns > totals.mean_ns:
        count -= 1
        total -= totals.max_ns
        squares -= totals.max_ns**2
    if count < 2:
        return MeanDuration(totals.calls, count, totals.mean_ns, inf)
    # Whole numbers up to the division: they are large, and their difference is small.
    deviations = max(count * squares - total**2, 0)
    error_ns2 = deviations / (count**2 * (count - 1))
    return MeanDuration(totals.calls, count, total / count, error_ns2)


def noise_bound_ns(old: MeanDuration, new: MeanDuration, risk: float) -> float:
    """The least difference of the two means that is more than chance: Welch's t-test.

    Chance alone exceeds it in one direction with a probability of `risk`, if the calls
    of a run differ independently of each other.
    """
    error_ns2 = old.error_ns2 + new.error_ns2
    if error_ns2 in (0, inf):
        return error_ns2
    # Parts of 1, since squares of these squares may be beyond floating point.
    parts = [(mean.error_ns2 / error_ns2, mean.averaged - 1) for mean in (old, new)]
    freedom = 1 / sum(part**2 / others for part, others in parts)
    return _t_quantile(risk, freedom) * sqrt(error_ns2)


def _t_quantile(risk: float, freedom: float) -> float:
    """What Student's t exceeds with a probability of `risk`, by Wallace's
    approximation: too high below 5 degrees of freedom, by 3 % at 4 and a fifth at 2.
    """
    z = -NormalDist().inv_cdf(risk) * (8 * freedom + 3) / (8 * freedom + 1)
    return sqrt(freedom * (exp(z**2 / freedom) - 1))
