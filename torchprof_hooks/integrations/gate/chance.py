"""What a module would take now if its code were as before, and by how much its time
differs by chance."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean
from typing import Final, NamedTuple

#: Prior of the slope with which a module's time follows that of memory, rather than of
#: arithmetic (0: not at all, 1: by as much): its mean, and its variance.
_SLOPE, _SLOPE_VARIANCE = 0.35, 0.3**2
#: Prior of the variance from one process to the next, and as how many observations it
#: counts. It comes from recorded processes on a busy machine, and keeps the estimate
#: from being too small where a few processes agree by chance.
_VARIANCE: Final = 0.025**2
_OBSERVATIONS: Final = 4
#: The slope depends on the variance, and the variance on the slope.
_ITERATIONS: Final = 3


class Point(NamedTuple):
    """What one process has measured of a module, as logarithms: a difference of 0.05 is
    5 %.

    memory: time of work with memory, in relation to that of arithmetic.
    time: time of the module, in relation to that of arithmetic.
    """

    memory: float
    time: float


class Difference(NamedTuple):
    """How new processes differ from old ones, as logarithms.

    excess: by how much they took longer than the old code would have taken now.
    deviation: the standard deviation of `excess`, with `runs` new processes.
    """

    excess: float
    deviation: float


def difference(old: Sequence[Point], new: Sequence[Point], runs: int) -> Difference:
    """Compare processes at different speeds of the machine.

    How fast a machine computes, and how fast its memory is, differ from one process and
    from one hour to the next, by ten per cent where other programs use the same caches.
    So the time of a module is taken to follow both, with a slope that is estimated from
    the old processes and a prior (Bayesian linear regression; see any textbook, such as
    Gelman et al., Bayesian Data Analysis, chapter 14).
    """
    at, level = _centre(old)
    now, spent = _centre(new)
    moved = sum((point.memory - at) ** 2 for point in old)
    together = sum((point.memory - at) * (point.time - level) for point in old)
    variance = _VARIANCE
    for _ in range(_ITERATIONS):
        known = moved + variance / _SLOPE_VARIANCE
        slope = (together + _SLOPE * variance / _SLOPE_VARIANCE) / known
        squares = _squares(old, slope) + _squares(new, slope)
        free = len(old) - 1 + len(new) - 1
        variance = (_OBSERVATIONS * _VARIANCE + squares) / (_OBSERVATIONS + free)
    expected = level + slope * (now - at)
    of_means = variance * (1 / len(old) + 1 / runs)
    of_slope = variance / known * (now - at) ** 2
    return Difference(spent - expected, sqrt(of_means + of_slope))


def _centre(points: Sequence[Point]) -> Point:
    return Point(fmean(point.memory for point in points), fmean(p.time for p in points))


def _squares(points: Sequence[Point], slope: float) -> float:
    """The sum of squared distances from the line with this slope through the centre."""
    centre = _centre(points)
    return sum(
        (point.time - centre.time - slope * (point.memory - centre.memory)) ** 2
        for point in points
    )
