"""How long a rank waits for others in a step, and how well that is known."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import Final, NamedTuple

from torchprof_hooks.profiles.step_times import Bucket

#: This share of the steps is left out, those in which a rank waits longest: a busy
#: machine holds up one rank or another for long, now and then.
_LEFT_OUT: Final = 0.2
#: With fewer steps than this, none is left out.
_FEW: Final = 8


class Waits(NamedTuple):
    """Waiting of a rank in a step, with communication; nanoseconds.

    mean_ns: of most steps (see `waits_of`).
    error_ns: the standard error of the mean: how far off it may be by chance.
    """

    mean_ns: float
    error_ns: float


def waits_of(buckets: Sequence[Bucket]) -> Waits:
    """The trimmed mean of these steps, and its standard error.

    The error is computed as if the steps left out were as long as the longest one kept
    (K. K. Yuen, "The two-sample trimmed t for unequal population variances", 1974).
    From few steps, it is not known well how much they differ: the variance of Student's
    t with n - 1 degrees of freedom is (n - 1) / (n - 3).
    """
    steps = sum(bucket.steps for bucket in buckets)
    kept = steps - (int(_LEFT_OUT * steps) if steps >= _FEW else 0)
    shortest = _shortest(buckets, kept)
    mean_ns = sum(ns * count for ns, count in shortest) / kept
    if kept <= 3:
        return Waits(mean_ns, inf)
    moved = [*shortest, (shortest[-1][0], steps - kept)]
    center_ns = sum(ns * count for ns, count in moved) / steps
    squares = sum((ns - center_ns) ** 2 * count for ns, count in moved)
    return Waits(mean_ns, sqrt(squares / (kept * (kept - 3))))


def _shortest(buckets: Sequence[Bucket], count: int) -> list[tuple[float, int]]:
    """The `count` shortest steps: durations, and how many steps have each."""
    found = []
    for _, steps, total_ns in buckets:
        taken = min(steps, count)
        if taken:
            found.append((total_ns / steps, taken))
        count -= taken
    return found
