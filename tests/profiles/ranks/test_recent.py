"""What ranks did between two of their files, and when that is worth a line."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence

import pytest

from tests.build import MS, buckets
from tests.ranks_of import USUAL, WAITING, Work, of_rank, rank_profile
from torchprof_hooks import Profile
from torchprof_hooks.documents.build.slow_rank import news_line
from torchprof_hooks.profiles.cells import CellKey
from torchprof_hooks.profiles.provenance import Provenance
from torchprof_hooks.profiles.ranks.rank import Rank, own_time_of
from torchprof_hooks.profiles.ranks.ranks import run_of
from torchprof_hooks.profiles.ranks.recent import Counts, News, SlowRank, counts_of
from torchprof_hooks.profiles.ranks.verdict import Verdict, find_verdict

SLOWED: Work = {**USUAL, ("Net > Net.head", "forward"): 35}


def counts(profile: Profile) -> Counts:
    return counts_of(profile, {}, {})


def part(number: int, work: Work, steps: int, **facts: str | int) -> Profile:
    """Steps of one of three ranks, of which each waits for the longest."""
    waits = [1.0 if work is SLOWED else 31.0]
    return rank_profile(work, waits, of_rank(number, 3, **facts), steps)


def test_the_verdict_is_on_what_came_since() -> None:
    """Rank 2 is slow in the last 10 of 1010 steps: in all together, that is little."""
    earlier = [part(number, USUAL, 1000) for number in range(3)]
    recent = [part(n, SLOWED if n == 2 else USUAL, 10) for n in range(3)]
    later = [one.merge(other) for one, other in zip(earlier, recent, strict=True)]
    known = [*map(counts, earlier)]
    lately = [counts(e).since(k) for e, k in zip(later, known, strict=True)]
    assert [each.steps for each in lately] == [10] * 3
    verdict = run_of(each.as_rank() for each in lately).verdict
    assert run_of(counts(each).as_rank() for each in later).verdict.rank is None
    assert verdict.rank == 2
    assert verdict.lost_ns == pytest.approx(30 * MS)
    assert news_line(News(2, None), verdict, 1010) == (
        "torchprof_hooks: step 1010: rank 2 is slow: the others wait 30.00ms in each "
        "step of 81.00ms; it spends that in Net.head, forward (+30.00ms a step)"
    )
    for each in lately:
        assert sum(each.own_ns.values()) == each.wall_ns


@pytest.mark.parametrize(
    "facts", [{"pid": 5}, {"host": "node1"}, {"started_ns": 7}], ids=str
)
def test_of_another_process_all_is_recent(facts: dict[str, str | int]) -> None:
    found = counts(part(0, USUAL, 9, **facts))
    assert found.since(counts(part(0, USUAL, 5))) is found
    assert found.since(None) is found


def verdict(*slow: int, lost: float = 0.0) -> Verdict:
    """With an error of 10: that these ranks are slow, or none is."""
    rank, also = (slow[0], slow[1:]) if slow else (None, ())
    return Verdict(rank, also, 50.0 if slow else lost, 10.0, 100.0, 0.0, None)


EVEN, UNCLEAR = verdict(), verdict(lost=9.0)


@pytest.mark.parametrize(
    ("verdicts", "told"),
    [
        ([EVEN] * 9, []),
        ([verdict(3), EVEN, verdict(3), EVEN], []),
        ([verdict(3), verdict(1), verdict(3), verdict(1)], []),
        ([verdict(3, 1), verdict(1, 3), verdict(3, 1)], [(1, None)]),
        ([verdict(3)] * 2 + [EVEN] * 2, [(3, None)]),
        ([verdict(3)] * 2 + [EVEN] * 9, [(3, None), (None, 3)]),
        ([verdict(3)] * 2 + [verdict(0)] * 9, [(3, None), (0, 3)]),
        ([verdict(3)] * 2 + [UNCLEAR] * 9, [(3, None)]),
        ([verdict(3), UNCLEAR, verdict(3)], [(3, None)]),
    ],
)
def test_news(
    verdicts: Sequence[Verdict], told: Sequence[tuple[int | None, int | None]]
) -> None:
    found = SlowRank()
    assert [news for each in verdicts if (news := found.news(each))] == told


def test_a_rank_that_is_slow_again_and_again_is_told_of_less_and_less() -> None:
    found, lines = SlowRank(), 0
    for number in range(1000):
        each = verdict(3) if number // 4 % 2 else EVEN
        lines += found.news(each) is not None
    assert lines == 3


def lines_in(
    noise: Callable[[], float], size: int, steps: int, windows: int
) -> Iterable[News]:
    """News of ranks that all do the same, but for noise, in so many comparisons."""
    found = SlowRank()
    for _ in range(windows):
        works = [[50 + noise() for _ in range(size)] for _ in range(steps)]
        ranks = []
        for number in range(size):
            own = [round(MS * work[number]) for work in works]
            step_ns = sum(MS * (1 + max(work)) for work in works) / steps
            waits_ns = step_ns - sum(own) / steps
            cells: dict[CellKey, float] = {((WAITING[0],), WAITING[1]): waits_ns}
            of, own_time = Provenance(number, size), own_time_of(buckets(own))
            ranks.append(Rank("", of, steps, step_ns, cells, {}, own_time))
        if news := found.news(find_verdict(ranks, ())):
            yield news


NOISES: dict[str, Callable[[random.Random], Callable[[], float]]] = {
    "little": lambda rng: lambda: rng.gauss(0, 1),
    "much": lambda rng: lambda: rng.gauss(0, 15),
    "one-sided": lambda rng: lambda: rng.expovariate(0.2),
    "held up": lambda rng: lambda: 500.0 if rng.random() < 0.01 else rng.gauss(0, 2),
    "long tail": lambda rng: lambda: 2 * rng.paretovariate(1.5),
}


@pytest.mark.parametrize("size", [2, 4, 16])
@pytest.mark.parametrize("kind", NOISES)
def test_steady_runs_are_quiet(kind: str, size: int) -> None:
    for steps, windows in ((8, 1600 // size), (100, 160 // size)):
        noise = NOISES[kind](random.Random(size))
        assert [*lines_in(noise, size, steps, windows)] == []
