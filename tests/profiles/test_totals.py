from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from tests.helpers import timed
from torchprof_hooks.profiles.memory import NO_MEMORY, MemoryTotals
from torchprof_hooks.profiles.totals import Totals

#: With a different number in each field.
MEMORY = MemoryTotals(1, 2, 3, 4)
EVERY = Totals(1, 2, 3, 4, 5, 6, 7, 8, 9, MEMORY, flops=10)


def test_mean_and_standard_deviation() -> None:
    eight = timed(2, 4, 4, 4, 5, 5, 7, 9)
    assert eight.mean_ns == 5.0  # 40 / 8
    assert eight.std_ns == 2.0  # sqrt(232/8 - 5**2) = sqrt(29 - 25)
    no_calls = Totals(self_ns=7)
    assert no_calls.mean_ns == no_calls.std_ns == 0.0


@pytest.mark.parametrize("duration", [10**9 + 1, 123_456_789_123, 3**35])
def test_rounding_does_not_make_the_variance_negative(duration: int) -> None:
    # Three equal calls; 3*d*d/3 - ((3*d)/3)**2 is 0 but for floating point.
    equal = Totals(3, duration_ns=3 * duration, squares_ns2=3 * duration**2 - 10**4)
    assert equal.std_ns >= 0.0


def test_adding_adds_everything_but_the_extremes() -> None:
    a, b = MEMORY, MemoryTotals(10, -20, 30, 1)
    left = Totals(1, 2, 3, 40, 50, 6, 7, 8, 9, a, b, 10)
    right = Totals(10, 20, 30, 4, 5, 60, 70, 80, 90, b, b, 100)

    assert a + b == MemoryTotals(11, -18, 33, 4)
    assert left + right == Totals(11, 22, 33, 4, 50, 66, 77, 88, 99, a + b, b + b, 110)
    assert right + left == left + right
    assert EVERY + Totals() == EVERY == Totals() + EVERY
    # More than 64 bits
    huge = Totals(calls=1, duration_ns=10**10, squares_ns2=10**20 + 1)
    assert (huge + huge + huge).squares_ns2 == 3 * 10**20 + 3


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (Totals(), Totals(), 0),
        (timed(5), Totals(), 5),
        (Totals(self_ns=3), timed(5), 5),  # open until now: no call
        (timed(0), timed(5), 0),  # a call of 0 ns
    ],
)
def test_the_minimum_is_that_of_calls(
    left: Totals, right: Totals, expected: int
) -> None:
    assert (left + right).min_ns == (right + left).min_ns == expected


def test_parts_of_totals() -> None:
    more = MemoryTotals(10, 20, 30, 4)
    assert MEMORY.with_peak(9) == MemoryTotals(1, 2, 3, 9)
    assert EVERY.with_cumulative(30, 90, more) == Totals(
        1, 2, 30, 4, 5, 6, 7, 8, 90, MEMORY, more, 10
    )
    memory = MemoryTotals(1, 2, 3)
    assert EVERY.without_calls() == Totals(
        self_ns=2, device_self_ns=8, memory=memory, flops=10
    )
    own = Totals(1, 2, 0, 4, 5, 6, 7, 8, memory=memory, flops=10)
    assert own.without_time() == Totals(1, 0, 0, 4, 5, 6, 7, memory=memory)


def test_totals_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        EVERY.calls = 9  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        NO_MEMORY.used_bytes = 9  # type: ignore[misc]
