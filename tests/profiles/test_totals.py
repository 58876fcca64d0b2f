from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from torchprof_hooks.profiles.memory import MemoryTotals
from torchprof_hooks.profiles.totals import Totals

# Calls of 2, 4, 4, 4, 5, 5, 7 and 9 ns: sum 40, squares 4+16+16+16+25+25+49+81 = 232.
EIGHT_CALLS = Totals(
    calls=8, self_ns=30, min_ns=2, max_ns=9, duration_ns=40, squares_ns2=232
)


def test_mean_and_standard_deviation() -> None:
    assert EIGHT_CALLS.mean_ns == 5.0  # 40 / 8
    assert EIGHT_CALLS.std_ns == 2.0  # sqrt(232/8 - 5**2) = sqrt(29 - 25)


def test_without_calls_mean_and_deviation_are_zero() -> None:
    assert Totals(self_ns=7).mean_ns == 0.0
    assert Totals(self_ns=7).std_ns == 0.0


def test_rounding_does_not_make_the_variance_negative() -> None:
    # Three equal calls; 3*d*d/3 - ((3*d)/3)**2 is 0 but for floating point.
    for duration in (10**9 + 1, 123_456_789_123, 3**35):
        equal = Totals(
            calls=3, duration_ns=3 * duration, squares_ns2=3 * duration**2 - 10**4
        )
        assert equal.std_ns >= 0.0


def test_adding_adds_everything_but_the_extremes() -> None:
    a, b = MemoryTotals(1, 2, 3, 4), MemoryTotals(10, 20, 30, 1)
    left = Totals(1, 2, 3, 40, 50, 6, 7, 8, 9, a, b, 10)
    right = Totals(10, 20, 30, 4, 5, 60, 70, 80, 90, b, b, 100)

    assert left + right == Totals(11, 22, 33, 4, 50, 66, 77, 88, 99, a + b, b + b, 110)
    assert right + left == left + right


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (Totals(), Totals(), 0),
        (Totals(calls=1, min_ns=5), Totals(), 5),
        (Totals(self_ns=3), Totals(calls=1, min_ns=5), 5),  # open until now: no call
        (Totals(calls=1, min_ns=0), Totals(calls=1, min_ns=5), 0),  # a call of 0 ns
    ],
)
def test_minimum_looks_only_at_calls(
    left: Totals, right: Totals, expected: int
) -> None:
    assert (left + right).min_ns == (right + left).min_ns == expected


def test_sums_are_exact_beyond_64_bits() -> None:
    # A call of 10**10 ns has a square of 10**20, more than 2**63.
    huge = Totals(calls=1, duration_ns=10**10, squares_ns2=10**20 + 1)

    assert (huge + huge + huge).squares_ns2 == 3 * 10**20 + 3


def test_adding_nothing_changes_nothing() -> None:
    assert EIGHT_CALLS + Totals() == EIGHT_CALLS == Totals() + EIGHT_CALLS


def test_with_cumulative_replaces_only_what_is_cumulative() -> None:
    own, all_of_it = MemoryTotals(1, 2, 3, 4), MemoryTotals(10, 20, 30, 4)
    totals = Totals(1, 2, 3, 4, 5, 6, 7, 8, 9, own, flops=10)

    assert totals.with_cumulative(30, 90, all_of_it) == Totals(
        1, 2, 30, 4, 5, 6, 7, 8, 90, own, all_of_it, 10
    )


def test_without_calls_only_what_is_its_own_remains() -> None:
    totals = Totals(1, 2, 3, 4, 5, 6, 7, 8, 9, MemoryTotals(1, 2, 3, 4), flops=10)

    assert totals.without_calls() == Totals(
        self_ns=2, device_self_ns=8, memory=MemoryTotals(1, 2, 3), flops=10
    )


def test_time_and_operations_are_in_one_of_both_parts() -> None:
    memory = MemoryTotals(1, 2, 3)
    totals = Totals(1, 2, 0, 4, 5, 6, 7, 8, memory=memory, flops=10)

    assert totals.without_time() == Totals(1, 0, 0, 4, 5, 6, 7, memory=memory)


def test_totals_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        EIGHT_CALLS.calls = 9  # type: ignore[misc]
