"""One rank: what is compared with other ranks; and how long a step takes it, without
waiting for these, with the error of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Final, NamedTuple

from torchprof_hooks.profiles.cells import CellKey, Infos
from torchprof_hooks.profiles.collectives import Collectives
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.errors import ProfileFileError
from torchprof_hooks.profiles.phases import WAITING_PHASES
from torchprof_hooks.profiles.provenance import Provenance
from torchprof_hooks.profiles.step_history import SlowStep
from torchprof_hooks.profiles.step_times import Bucket

#: The share of steps that is left out: those in which a rank takes longest. A busy
#: machine delays some rank for long, now and then.
_LEFT_OUT: Final = 0.2
#: With fewer steps than this, no step is left out.
_FEW: Final = 8


class OwnTime(NamedTuple):
    """How long a step takes a rank, without waiting for others and communication.
    Waiting that all ranks share does not enter the error.

    mean_ns: the mean over most steps (see `own_time_of`).
    error_ns: the standard error of the mean.
    """

    mean_ns: float
    error_ns: float


def own_time_of(buckets: Sequence[Bucket]) -> OwnTime:
    """The trimmed mean of these steps, and its standard error.

    The error is computed as if the steps left out were as long as the longest one kept
    (K. K. Yuen, "The two-sample trimmed t for unequal population variances", 1974). It
    is larger for few steps, whose spread is not known well: the variance of Student's t
    with n - 1 degrees of freedom is (n - 1) / (n - 3).
    """
    steps = sum(bucket.steps for bucket in buckets)
    kept = steps - (int(_LEFT_OUT * steps) if steps >= _FEW else 0)
    shortest = _shortest(buckets, kept)
    mean_ns = sum(ns * count for ns, count in shortest) / kept
    if kept <= 3:
        return OwnTime(mean_ns, inf)
    moved = [*shortest, (shortest[-1][0], steps - kept)]
    center_ns = sum(ns * count for ns, count in moved) / steps
    squares = sum((ns - center_ns) ** 2 * count for ns, count in moved)
    return OwnTime(mean_ns, sqrt(squares / (kept * (kept - 3))))


def _shortest(buckets: Sequence[Bucket], count: int) -> list[tuple[float, int]]:
    """The `count` shortest steps, as pairs (duration, how many steps have it)."""
    found = []
    for _, steps, total_ns in buckets:
        taken = min(steps, count)
        if taken:
            found.append((total_ns / steps, taken))
        count -= taken
    return found


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank did in a step, on average; times in nanoseconds.

    name: the name of its file.
    steps: how many training steps have ended.
    step_ns: the wall time, divided by the number of steps (by 1 without steps).
    cells: own times by chain of calls and phase. They add up to `step_ns`.
    infos: descriptions of the names in the chains.
    collectives: what was exchanged in the measured steps.
    own: the time without waiting for others, and communication.
    slow_steps: see `ProfileData`.
    """

    name: str
    provenance: Provenance
    steps: int
    step_ns: float
    cells: Mapping[CellKey, float]
    infos: Infos
    own: OwnTime
    collectives: Collectives = ()
    slow_steps: tuple[SlowStep, ...] = ()

    @property
    def number(self) -> int:
        """The rank's number among all ranks."""
        return self.provenance.rank

    @property
    def waiting_ns(self) -> float:
        """How long the rank waits for others in a step, communication included."""
        return _waiting_ns(self.cells)

    @property
    def outermost(self) -> frozenset[str]:
        """The modules that are called from outside of all others."""
        firsts = {path[0] for path, _ in self.cells}
        return frozenset(n for n in firsts if self.infos[n].kind == "module")


def rank_of(name: str, profile: ProfileData) -> Rank:
    """The rank of a profile, with times per step. These are of its loop, if that has
    steps; else of all that was measured.

    name: the name of its file.

    Raises:
        ProfileFileError: the profile is of no rank, or of several.
    """
    if not profile.provenance:
        raise ProfileFileError(f"{name} does not say which rank it is of")
    if len(profile.provenance) > 1:
        raise ProfileFileError(f"{name} is the sum of several")
    loop = profile.loop if profile.loop.steps else profile.only_measured
    count = max(loop.steps, 1)
    step_ns = loop.wall_ns / count
    cells = {key: totals.self_ns / count for key, totals in loop.cells.items()}
    if loop.step_times.own:
        own = own_time_of(loop.step_times.own)
    else:  # without times of single steps, the error of the mean is not known
        own = OwnTime(step_ns - _waiting_ns(cells), inf)
    return Rank(
        name,
        loop.provenance[0],
        profile.steps,
        step_ns,
        cells,
        dict(loop.modules),
        own,
        loop.collectives,
        profile.slow_steps,
    )


def _waiting_ns(cells: Mapping[CellKey, float]) -> float:
    return sum(ns for (_, phase), ns in cells.items() if phase in WAITING_PHASES)
