"""How much runs of unchanged code differ: what a difference between two sides of a few
runs each is measured by.

All values are logarithms of times, so that a difference of 0.1 is one of 10 % for rows
of any length, and the speed of the machine is a summand that rows share.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, log, sqrt
from statistics import NormalDist, fmean, median, variance
from typing import Final, NamedTuple

#: Rows that take about as long as another one, which tell how noisy that may be.
_NEIGHBOURS: Final = 15
#: With fewer rows, these tell nothing of each other.
_ENOUGH_ROWS: Final = 5
#: How often other rows count at most, where the runs of a row itself count once. So a
#: run that was interrupted cannot make a row significant: its own runs scatter.
_MOST_TRUST: Final = 4
#: The degrees of freedom of what other rows tell, if they are all there is: few, as it
#: is a guess that rows scatter alike.
_OF_OTHERS: Final = 3.0
#: Differences are not known better than to this share.
_LEAST_ERROR: Final = 1e-6
#: How many standard errors beyond noise a change is found in 19 of 20 cases.
_FOUND: Final = 1.645
#: Environment variables that make the C library keep memory that tensors free: whether
#: it returns that to the system is chance, and can double the time of a row in a run.
KEEP_MEMORY: Final = dict.fromkeys(
    ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), str(1 << 30)
)


#: The values of a row, one for each run; or the differences of pairs.
Values = Sequence[float]


class Difference(NamedTuple):
    """By how much new runs differ from old ones.

    mean: the difference of the means.
    error: its standard error (inf: not known).
    freedom: how many degrees of freedom that has.
    """

    mean: float
    error: float
    freedom: float

    def noise(self, risk: float) -> float:
        """What chance alone exceeds in one direction with a probability of `risk`."""
        if self.error == inf:
            return inf
        return t_quantile(risk, self.freedom) * self.error

    def visible(self, risk: float, threshold: float) -> float:
        """The least change that is beyond noise and threshold in 19 of 20 cases."""
        return max(self.noise(risk), threshold) + _FOUND * self.error


def difference_of(groups: Sequence[Values]) -> Difference:
    """The difference of a row, by how much its own runs scatter.

    groups: the values of the old, and of the new runs; or one group, the differences of
        pairs.
    """
    means = [fmean(group) for group in groups]
    squares = sum(
        (value - mean) ** 2
        for group, mean in zip(groups, means, strict=True)
        for value in group
    )
    freedom = sum(map(len, groups)) - len(groups)
    scale2 = sum(1 / len(group) for group in groups)
    error = sqrt(squares / freedom * scale2) if freedom else inf
    mean = means[-1] - (means[0] if len(groups) > 1 else 0.0)
    return Difference(mean, max(error, _LEAST_ERROR), freedom)


def differences_of(
    rows: Sequence[Sequence[Values]], sizes: Sequence[float]
) -> list[Difference]:
    """The difference of each row, with errors that rows of about the same size tell,
    too: in few runs, it is hardly seen how much one row scatters.

    rows: for each row, its groups, as for `difference_of`.
    sizes: the time of each row: short ones are noisier.

    An error is the mean of the row's own and its neighbours' usual one (as in Smyth's
    moderated t-test, 2004), or its own if that is larger. The more the errors of such
    rows differ, the less these count. With one run on either side, they are all that
    there is.
    """
    alone = [difference_of(groups) for groups in rows]
    if len(rows) < _ENOUGH_ROWS:
        return alone
    freedom = alone[0].freedom
    # Of a single pair, the square of the difference is an estimate, too.
    own2 = [
        max(each.error if freedom else abs(each.mean), _LEAST_ERROR) ** 2
        for each in alone
    ]
    usual2 = _of_neighbours(own2, sizes, max(freedom, 1))
    trust = _trust(own2, usual2, freedom) if freedom else _OF_OTHERS
    found = []
    for each, own, usual in zip(alone, own2, usual2, strict=True):
        error2 = (trust * usual + freedom * own) / (trust + freedom)
        # Some rows are noisier than others of their size, and never known better than
        # by their own runs.
        error2 = max(error2, own if freedom else 0.0)
        found.append(Difference(each.mean, sqrt(error2), trust + freedom))
    return found


def _of_neighbours(
    own2: Sequence[float], sizes: Sequence[float], freedom: float
) -> list[float]:
    """For each row, the usual squared error of those that take about as long."""
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    # The median of a variance is below its mean (Wilson and Hilferty).
    below = (1 - 2 / (9 * freedom)) ** 3
    found = [0.0] * len(order)
    for place, row in enumerate(order):
        first = min(place - _NEIGHBOURS // 2, len(order) - _NEIGHBOURS)
        near = order[max(first, 0) :][:_NEIGHBOURS]
        found[row] = median(own2[each] for each in near) / below
    return found


def _trust(own2: Sequence[float], usual2: Sequence[float], freedom: float) -> float:
    """The degrees of freedom of the usual squared error: the more those of single rows
    differ from it, beyond chance, the fewer."""
    logs = [log(own / usual) for own, usual in zip(own2, usual2, strict=True)]
    # The variance of the logarithm of a variance is trigamma(freedom / 2).
    half = freedom / 2
    by_chance = 1 / half + 1 / (2 * half**2) + 1 / (6 * half**3)
    more = variance(logs) - by_chance
    most = _MOST_TRUST * freedom
    return min((1 + sqrt(1 + 2 * more)) / more, most) if more > 0 else most


def in_common(rows: Sequence[Values]) -> list[float]:
    """What the rows have in common in each run, whichever of them changed: the median
    of how they differ from their own means.

    rows: the values of each row in all runs.
    """
    means = [fmean(row) for row in rows]
    return [
        median(row[run] - mean for row, mean in zip(rows, means, strict=True))
        for run in range(len(rows[0]))
    ]


def weighted_median(pairs: Sequence[tuple[float, float]]) -> float:
    """The median of (value, weight); inf without any."""
    left = sum(weight for _, weight in pairs) / 2
    for value, weight in sorted(pairs):
        left -= weight
        if left <= 0:
            return value
    return inf


def t_quantile(risk: float, freedom: float) -> float:
    """The value that Student's t exceeds with a probability of `risk`, by Wallace's
    approximation: too high below 5 degrees of freedom, by 3 % at 4 and a fifth at 2.
    """
    z = -NormalDist().inv_cdf(risk) * (8 * freedom + 3) / (8 * freedom + 1)
    return sqrt(freedom * (exp(z**2 / freedom) - 1))
