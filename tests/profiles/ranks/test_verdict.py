"""Who waits for whom: one answer, from profiles whose numbers are known."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf, sqrt
from typing import Any

import pytest

from tests.build import MS, buckets, timed, with_fields
from tests.ranks_of import (
    STEPS,
    USUAL,
    WAITING,
    Work,
    as_rank,
    of_rank,
    rank_profile,
    ranks_of,
)
from torchprof_hooks import Profile
from torchprof_hooks.documents.build.slow_rank import slow_rank_answer
from torchprof_hooks.profiles.modules import ModuleInfo
from torchprof_hooks.profiles.names import Phase
from torchprof_hooks.profiles.ranks.rank import OwnTime, Rank, own_time_of
from torchprof_hooks.profiles.ranks.ranks import RanksData, run_of
from torchprof_hooks.profiles.ranks.skew import phase_times
from torchprof_hooks.profiles.ranks.verdict import Reason, Verdict, find_turns
from torchprof_hooks.profiles.step_history import PhaseOfStep, SlowStep
from torchprof_hooks.profiles.step_times import Bucket

SIZES = (2, 4, 8)
SLOWER = 30
DATA: tuple[str, Phase] = ("(data loading)", "data")
NET: tuple[str, Phase] = ("Net", "forward")
BODY: tuple[str, Phase] = ("Net > Net.body", "forward")
IN_BODY: tuple[str, Phase] = ("Net > Net.body > Net.head", "forward")

PLANTED: dict[str, tuple[str, Phase]] = {
    "a forward": ("Net > Net.head", "forward"),
    "a backward": ("Net > Net.body", "backward"),
    "data": DATA,
    "own code": ("(outside modules)", "outside"),
    "the optimizer": ("(optimizer) SGD", "optimizer"),
}


def slowed(place: tuple[str, Phase], by_ms: float = SLOWER) -> Work:
    return {**USUAL, place: USUAL[place] + by_ms}


def reason_of(verdict: Verdict) -> Reason:
    assert verdict.reason is not None
    return verdict.reason


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("place", PLANTED.values(), ids=PLANTED)
def test_the_slow_rank_and_its_row(place: tuple[str, Phase], size: int) -> None:
    for slow in range(size):
        works = [slowed(place) if n == slow else USUAL for n in range(size)]
        verdict = ranks_of(works).verdict
        assert (verdict.rank, verdict.also) == (slow, ())
        assert verdict.lost_ns == pytest.approx(SLOWER * MS)
        reason = reason_of(verdict)
        name = place[0].rpartition(" > ")[2]
        assert (reason.row, reason.phase) == (name, place[1])
        assert reason.spent_ns == (USUAL[place] + SLOWER) * MS
        assert reason.others_ns == USUAL[place] * MS


@pytest.mark.parametrize("size", SIZES)
def test_twice_the_batch_is_all_of_the_model(size: int) -> None:
    twice = {key: ms * 2 if "Net" in key[0] else ms for key, ms in USUAL.items()}
    verdict = ranks_of([USUAL] * (size - 1) + [twice]).verdict
    assert (verdict.rank, verdict.lost_ns) == (size - 1, 46 * MS)
    reason = reason_of(verdict)
    assert (reason.row, reason.phase, reason.is_own) == ("Net", "", False)


def test_forward_and_backward_of_a_module_explain_it_together() -> None:
    both = dict.fromkeys((BODY, (BODY[0], "backward")), 12)
    work = {key: USUAL.get(key, 0) + both.get(key, 0) for key in {**USUAL, **both}}
    verdict = ranks_of([USUAL, work, USUAL]).verdict
    reason = reason_of(verdict)
    assert (reason.row, reason.phase, reason.is_own) == ("Net.body", "", True)
    assert reason.excess_ns == verdict.lost_ns == 24 * MS


@pytest.mark.parametrize(
    ("more", "row", "phase"),
    [
        ({key: 10 for key in USUAL if key[1] == "forward"}, "Net", "forward"),
        # What is around it has less to do than in others.
        ({NET: -0.5, BODY: 7, IN_BODY: 7}, "Net.body", "forward"),
    ],
    ids=["one phase of many modules", "the innermost module"],
)
def test_slow_in_several_places(more: Work, row: str, phase: Phase | None) -> None:
    work = {key: USUAL.get(key, 0) + more.get(key, 0) for key in {**USUAL, **more}}
    reason = reason_of(ranks_of([USUAL, work, USUAL]).verdict)
    assert (reason.row, reason.phase, reason.is_own) == (row, phase, False)


HALF = {key: ms / 2 for key, ms in USUAL.items()}


@pytest.mark.parametrize(
    ("works", "jitter_ms", "slow"),
    [
        ([slowed(DATA, 2), USUAL], 0, ()),  # 2 ms of 53 ms
        ([slowed(DATA, 2), *[USUAL] * 7], 0, ()),
        ([slowed(DATA, 10), USUAL, USUAL], 1, (0,)),
        ([slowed(DATA, 10), USUAL, USUAL], 40, ()),  # chance explains it
        ([USUAL, slowed(DATA), USUAL, slowed(DATA), *[USUAL] * 4], 0, (1, 3)),
        ([USUAL, HALF, USUAL, USUAL], 0, ()),
        ([USUAL], 0, ()),
    ],
    ids=["little", "little of 8", "one", "chance", "two", "less to do", "one process"],
)
def test_who_is_blamed(works: Any, jitter_ms: float, slow: tuple[int, ...]) -> None:
    verdict = ranks_of(works, jitter_ms).verdict
    assert (() if verdict.rank is None else (verdict.rank, *verdict.also)) == slow


@pytest.mark.parametrize("size", SIZES)
def test_nobody_is_blamed_where_all_are_alike(size: int) -> None:
    verdict = ranks_of([USUAL] * size).verdict
    assert (verdict.rank, verdict.also, verdict.reason) == (None, (), None)
    assert verdict.waiting_ns == MS


@pytest.mark.parametrize(
    ("jitter_ms", "slower_ms", "is_even"),
    [(0, 0, True), (0, 2, True), (3, 0, True), (5, 0, False), (3, 3, False)],
)
def test_even_is_what_is_known_to_be_even(
    jitter_ms: float, slower_ms: float, is_even: bool
) -> None:
    """Up to 5 % of 53 ms, with as large an error; or else, nothing is known."""
    works = [USUAL, slowed(DATA, slower_ms), USUAL]
    verdict = ranks_of(works, jitter_ms).verdict
    assert (verdict.rank, verdict.is_even) == (None, is_even)


def simulated(
    size: int,
    slow: int | None,
    rng: random.Random,
    *,
    count: int = STEPS,
    slower_ms: float = 25,
    exchange_ms: float = 0.1,
) -> RanksData:
    """Ranks whose work differs by 10 % from step to step; in each, all wait for the one
    that takes longest, and exchange something, for shorter or longer. The slow one
    takes half a step longer."""
    steps = [[rng.gauss(50, 5) for _ in range(size)] for _ in range(count)]
    exchanges = [rng.expovariate(1 / exchange_ms) for _ in range(count)]
    if slow is not None:
        for step in steps:
            step[slow] += slower_ms
    found = []
    for number in range(size):
        waits = [
            exchange + max(step) - step[number]
            for step, exchange in zip(steps, exchanges, strict=True)
        ]
        mean = sum(step[number] for step in steps) / count
        more = [step[number] - mean for step in steps]
        work = {**USUAL, ("Net > Net.head", "forward"): mean - 45}
        of = of_rank(number, size)
        found.append(as_rank(rank_profile(work, waits, of, count, more)))
    return run_of(found)


@pytest.mark.parametrize("size", SIZES)
def test_noise_in_all_ranks(size: int) -> None:
    rng = random.Random(0)
    for turn in range(20):
        assert simulated(size, None, rng).verdict.rank is None
        slow = turn % size
        verdict = simulated(size, slow, rng).verdict
        assert (verdict.rank, reason_of(verdict).row) == (slow, "Net.head")


def test_a_rank_that_is_slow_by_less_than_exchanges_differ() -> None:
    """By 8 ms; exchanges take 30 ms on average, with as large a standard deviation."""
    rng, run = random.Random(1), partial(simulated, 4, count=90, exchange_ms=30)
    slow = [run(3, rng, slower_ms=8).verdict for _ in range(20)]
    even = [run(None, rng).verdict for _ in range(20)]
    assert [(each.rank, each.also) for each in slow].count((3, ())) >= 19
    assert [each.is_even for each in even].count(True) >= 19


@pytest.mark.parametrize("size", SIZES)
def test_another_slow_rank_in_each_step(size: int) -> None:
    """Also where the last turn is not complete."""
    found = []
    for number in range(size):
        waits = [1.0 if n % size == number else 31.0 for n in range(STEPS)]
        mean = 30 * waits.count(1.0) / STEPS
        work = {**USUAL, ("(data loading)", "data"): 1 + mean}
        more = [31 - ms - mean for ms in waits]
        profile = rank_profile(work, waits, of_rank(number, size), more_ms=more)
        found.append(as_rank(profile))
    assert run_of(found).verdict.rank is None


def four(
    waits_ms: Sequence[float] = (1.0,),
    steps: int = STEPS,
    more_ms: Sequence[float] = (0.0,),
) -> Iterator[Profile]:
    """Of four ranks, of which 2 is slower by 10 ms; it waits so long, and the others by
    that much longer. All do so much more in one step after the other."""
    for number in range(4):
        is_slow = number == 2
        work = slowed(DATA, 10) if is_slow else USUAL
        waits = [ms if is_slow else ms + 10 for ms in waits_ms]
        yield rank_profile(work, waits, of_rank(number, 4), steps, more_ms)


def test_steps_that_differ_for_all_ranks_alike_are_no_noise() -> None:
    later = (Bucket(1, 10, MS), Bucket(2, 10, 2000 * MS))
    found = [
        with_fields(each, step_times=each.step_times._replace(later=later))
        for each in four()
    ]
    assert run_of(map(as_rank, found)).verdict.rank == 2


def test_what_a_step_waits_in_one_call_or_another_is_no_noise() -> None:
    """In the first step, for a broadcast; in all others, for gradients."""
    found = []
    for profile in four(steps=8):
        key, name = ((WAITING[0],), WAITING[1]), "(communication) broadcast"
        wait_ns = profile.cells[key].max_ns
        cells = {
            **profile.cells,
            key: timed(*[wait_ns] * 7, 0),
            ((name,), "communication"): timed(wait_ns),
        }
        infos = {**profile.modules, name: ModuleInfo(kind="communication")}
        found.append(replace(with_fields(profile, cells=cells), modules=infos))
    assert run_of(map(as_rank, found)).verdict.rank == 2


def test_a_step_in_which_the_machine_holds_up_another_rank() -> None:
    """All others wait for it, the slow one too: a second in that step."""
    held_up = [0.0, 0.0, 0.0, 0.0, 1000.0, 0.0, 0.0, 0.0, 0.0]
    found = [*four([1 + ms for ms in held_up], 9)]
    found[1] = [*four(steps=9, more_ms=held_up)][1]
    verdict = run_of(map(as_rank, found)).verdict
    assert verdict.rank == 2
    assert verdict.lost_ns == pytest.approx(10 * MS, rel=0.01)


def test_what_all_wait_for_in_some_steps_is_no_noise() -> None:
    """Such as communication that takes long: rank 2 takes 10 ms more in each."""
    waits = [2.0, 90.0, 3.0, 40.0, 5.0]
    verdict = run_of(map(as_rank, four(waits))).verdict
    assert verdict.rank == 2
    assert verdict.lost_ns == pytest.approx(10 * MS)


def test_nobody_waits_for_a_rank_longer_than_it_waits() -> None:
    """Without communication in steps, others do not wait for a rank that does more."""
    work = {0: slowed(DATA, 40), 1: USUAL, 2: USUAL}
    found = [rank_profile(each, [1.0], of_rank(n, 3)) for n, each in work.items()]
    verdict = run_of(map(as_rank, found)).verdict
    assert (verdict.rank, verdict.lost_ns) == (None, MS)


def test_a_rank_is_as_slow_only_if_it_is_nearer_to_the_slow_one() -> None:
    """By chance, it may be any."""
    works = [USUAL, USUAL, slowed(DATA, 9), slowed(DATA, 20)]
    verdict = ranks_of(works, jitter_ms=5).verdict
    assert verdict.noise_ns > 11 * MS
    assert (verdict.rank, verdict.also) == (3, ())


def test_steps_that_take_longest_are_left_out() -> None:
    """Two of ten; the trimmed mean and its error, worked out by hand."""
    own = [70, 2, 2, 2, 2, 4, 6, 6, 30, 8]
    found = own_time_of(buckets(ms * MS for ms in own))
    assert found.mean_ns == 4 * MS
    # 2, 4, 6 and 8, of these 4, 1, 2 and 3: their mean is 4.8 ms.
    squares = 4 * 2.8**2 + 0.8**2 + 2 * 1.2**2 + 3 * 3.2**2
    assert found.error_ns == pytest.approx(sqrt(squares / (8 * 5)) * MS)


def test_of_a_few_steps_none_is_left_out() -> None:
    found = own_time_of(buckets([1 * MS, 3 * MS, 1 * MS, 3 * MS, 7 * MS]))
    assert found.mean_ns == 3 * MS
    assert found.error_ns == pytest.approx(sqrt(24 / (5 * 2)) * MS)
    assert own_time_of(buckets([MS, MS, MS])) == OwnTime(MS, inf)


@pytest.mark.parametrize(("steps", "slow"), [(5, 2), (4, None), (1, None)])
def test_few_steps_say_little(steps: int, slow: int | None) -> None:
    assert run_of(map(as_rank, four(steps=steps))).verdict.rank == slow


def test_functions_are_in_the_phases_of_what_calls_them() -> None:
    """So phases are the same, whether functions were measured or not."""
    work: Work = {**USUAL, ("randn(2)", "forward"): 3, ("Net > relu(2)", "forward"): 4}
    [rank] = ranks_of([work]).ranks
    times = phase_times(rank)
    assert (times["forward"], times["outside"]) == (20 * MS, 4 * MS)
    assert sum(times.values()) == rank.step_ns


def held_up(rank: int, numbers: Sequence[int], waits: Sequence[int]) -> Rank:
    """A rank that collects garbage for 100 ms in steps of these numbers, and waits for
    others in those."""
    held: dict[Phase, Sequence[int]] = {"garbage": numbers, "waiting": waits}
    slowest = tuple(
        SlowStep(number, 151 * MS, 51 * MS, (PhaseOfStep(phase, 100 * MS, 0),))
        for phase, steps in held.items()
        for number in steps
    )
    found = as_rank(rank_profile(USUAL, [1], of_rank(rank, 4)))
    return replace(found, slow_steps=slowest)


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([[3], [7], [11], [15]], ((0, 1, 2, 3), 4)),
        ([[3, 4], [4, 8], [], []], ((0, 1), 2)),  # in step 4, nobody waits for one
        ([[3], [3], [3], [3]], None),  # all at once: as it should be
        ([[3, 7, 11, 15], [], [], []], None),
    ],
    ids=["in turns", "two", "at once", "one"],
)
def test_ranks_that_are_held_up_in_turns(steps: Any, found: Any) -> None:
    every = {number for each in steps for number in each}
    ranks = [held_up(n, own, sorted(every - {*own})) for n, own in enumerate(steps)]
    turns = find_turns(ranks)
    if found is None:
        assert turns is None
        return
    assert turns is not None
    assert (turns.ranks, turns.steps) == found
    assert (turns.phase, turns.more_ns) == ("garbage", found[1] * 100 * MS)
    text = slow_rank_answer(run_of(ranks)).evidence
    who = "Each rank is" if len(found[0]) == 4 else "Ranks 0, 1 are each"
    assert f"{who} held up in other steps, mostly by garbage collection: " in text
    assert (
        f"{found[1] * 100}.00ms in {found[1] / STEPS:.1%} of steps".replace("%", " %")
        in text
    )


def test_ranks_that_are_held_up_for_little() -> None:
    ranks = [held_up(n, [n + 1], []) for n in range(2)]
    long = [replace(rank, step_ns=1e9 * MS) for rank in ranks]
    assert find_turns(ranks) is not None
    assert find_turns(long) is None
