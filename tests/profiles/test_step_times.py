"""What is remembered of the durations of steps."""

from __future__ import annotations

import pickle
from random import Random

import pytest

from torchprof_hooks.kernel.step_counter import StepCounter
from torchprof_hooks.profiles.step_times import Bucket, StepTimes, bucket_of

WIDTH = 2 ** (1 / 64) - 1


def counted(first_ns: int, *later_ns: int) -> StepTimes:
    counter = StepCounter()
    counter.count(first_ns, is_first=True)
    for duration_ns in later_ns:
        counter.count(duration_ns, is_first=False)
    return counter.times()


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 1.0])
def test_quantiles_are_as_exact_as_buckets_are_wide(share: float) -> None:
    chance = Random(1)
    later = sorted(round(chance.lognormvariate(16, 1)) for _ in range(1000))
    true_ns = later[max(round(share * 1000) - 1, 0)]
    found_ns = counted(10**9, *later).quantile_ns(share)
    assert found_ns == pytest.approx(true_ns, rel=WIDTH)


@pytest.mark.parametrize(
    ("later", "quantile_ns"),
    [
        ([123_456_789] * 7, 123_456_789),  # equal steps: exact
        ([10**7] * 99 + [10**10], 10**7),  # one that compiles
        ([], 0.0),
    ],
    ids=["equal", "one compiles", "none"],
)
def test_quantiles_of_equal_steps(later: list[int], quantile_ns: float) -> None:
    times = counted(10**9, *later)
    assert times.quantile_ns(0.5) == times.quantile_ns(0.9) == quantile_ns


@pytest.mark.parametrize("seed", range(20))
def test_merging_is_counting_all(seed: int) -> None:
    chance = Random(seed)
    one, other, both = StepCounter(), StepCounter(), StepCounter()
    total_ns = 0
    for counter in (one, other):
        for number in range(chance.randint(0, 30)):
            duration_ns = chance.choice([0, 1, 2, 1000, 1001, chance.getrandbits(50)])
            total_ns += duration_ns
            for into in (counter, both):
                into.waited(duration_ns // 3, duration_ns)
                into.count(duration_ns, is_first=not number)
                into.evaluation(7 * number, number)
                into.evaluation(3, is_first=not number)
    left, right, whole = one.times(), other.times(), both.times()
    assert left.merge(right) == right.merge(left) == whole
    assert whole.merge(StepTimes()) == whole
    assert pickle.loads(pickle.dumps(whole)) == whole
    assert whole.first_ns + whole.later_ns == total_ns
    assert whole.without(left) == right
    assert both.copy().times() == whole
    assert sum(bucket.steps for bucket in whole.own) == whole.steps


def test_own_times_are_kept_only_where_steps_wait() -> None:
    counter = StepCounter()

    def step(waited_ns: int, duration_ns: int, steps: int) -> None:
        counter.waited(waited_ns, duration_ns, steps)
        counter.count(duration_ns, steps, is_first=not counter.steps)

    step(0, 70, 1)
    step(0, 300, 3)
    assert counter.times().own == ()
    step(10, 50, 1)  # those before have not waited
    assert [b[1:] for b in counter.times().own] == [(1, 40), (1, 70), (3, 300)]
    step(10, 9, 1)  # begun in another step
    assert counter.times().own[0] == Bucket(0, 1, 0)


def test_memory_depends_on_how_different_steps_are() -> None:
    assert len(counted(0, *range(10_000, 40_000)).later) <= 2 * 64 + 1


def test_buckets_rise() -> None:
    numbers = [bucket_of(duration_ns) for duration_ns in range(5000)]
    assert numbers == sorted(numbers)
    assert bucket_of(0) == bucket_of(1) == 0
