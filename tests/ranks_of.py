"""Ranks that were built by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.build import MS, buckets, profile_of, timed
from torchprof_hooks import Profile
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.provenance import Provenance
from torchprof_hooks.profiles.ranks.rank import Rank, rank_of
from torchprof_hooks.profiles.ranks.ranks import RanksData, run_of
from torchprof_hooks.profiles.step_times import (
    StepTimes,
)

SECOND = 1000 * MS
#: When the runs of tests began, in nanoseconds since 1970.
BEGAN = 1_000_000 * SECOND
STEPS = 20

#: What a rank does in a step that nobody waits in, in milliseconds.
USUAL: dict[tuple[str, Phase], float] = {
    ("Net", "forward"): 1,
    ("Net > Net.body", "forward"): 10,
    ("Net > Net.head", "forward"): 5,
    ("Net > Net.body", "backward"): 20,
    ("Net > Net.head", "backward"): 10,
    ("(optimizer) SGD", "optimizer"): 2,
    ("(data loading)", "data"): 1,
    ("(outside modules)", "outside"): 1,
}
WAITING: tuple[str, Phase] = ("(waiting for gradients)", "waiting")
_INFOS = {"Net": "Net", "Net.body": "Linear", "Net.head": "Linear"}

Work = dict[tuple[str, Phase], float]


def of_rank(rank: int, world_size: int, **facts: Any) -> Provenance:
    """Where the profile of a rank of the run comes from; it ended after 100 s."""
    found = Provenance(
        *(rank, world_size, rank, "node0", 100 + rank, "cpu", "2.13.0", "0.1.0"),
        *("train.py", "", BEGAN, BEGAN + 100 * SECOND, 10 * SECOND, True),
    )
    return found._replace(**facts)


def rank_profile(
    work: Work,
    waits_ms: Sequence[float],
    provenance: Provenance,
    steps: int = STEPS,
    more_ms: Sequence[float] = (0.0,),
) -> Profile:
    """The profile of a rank that did this in each step, in milliseconds, and waited so
    long in one after the other, again and again.

    more_ms: how much more it did in one step after the other: on average, nothing.
    """
    waits = [round(waits_ms[n % len(waits_ms)] * MS) for n in range(steps)]
    usual_ms = sum(work.values())
    own = [round((usual_ms + more_ms[n % len(more_ms)]) * MS) for n in range(steps)]
    cells = {key: timed(*[round(ms * MS)] * steps) for key, ms in work.items()}
    step_ns = map(sum, zip(own, waits, strict=True))
    return profile_of(
        {**cells, WAITING: timed(*waits)},
        _INFOS,
        steps=steps,
        step_times=StepTimes(later=buckets(step_ns), own=buckets(own)),
        provenance=(provenance,),
    )


def as_rank(profile: Profile) -> Rank:
    number = profile.provenance[0].rank
    name = f"profile-rank{number}.json"
    return rank_of(name, profile)


def ranks_of(works: Sequence[Work], jitter_ms: float = 0.0) -> RanksData:
    """The ranks of a run that wait for the slowest of them at the end of each step, for
    a millisecond at least.

    jitter_ms: by so much, a step may take a rank longer or shorter, in turns.
    """
    longest = max(sum(work.values()) for work in works)
    found = []
    for number, work in enumerate(works):
        wait = 1 + longest - sum(work.values()) + jitter_ms
        provenance = of_rank(number, len(works))
        more = (jitter_ms, -jitter_ms)
        waits = [wait - ms for ms in more]
        found.append(as_rank(rank_profile(work, waits, provenance, more_ms=more)))
    return run_of(found)
