from __future__ import annotations

from math import inf, sqrt
from statistics import NormalDist, mean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import timed
from torchprof_hooks.profiles.compare import (
    MeanDuration,
    mean_duration,
    noise_bound_ns,
)
from torchprof_hooks.profiles.totals import Totals

durations = st.lists(st.integers(0, 2**40), min_size=3, max_size=8)


@given(durations)
def test_mean_and_error_are_those_of_all_calls_but_the_slowest(
    values: list[int],
) -> None:
    found = mean_duration(timed(*values))

    others = sorted(values)[:-1] if len(set(values)) > 1 else values
    assert found.calls == len(values)
    assert found.averaged == len(others)
    assert found.mean_ns == pytest.approx(mean(others))
    error_ns = stdev(others) / sqrt(len(others))
    assert sqrt(found.error_ns2) == pytest.approx(error_ns)


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        (Totals(), MeanDuration(0, 0, 0.0, inf)),
        (timed(7), MeanDuration(1, 1, 7.0, inf)),
        (timed(4, 6), MeanDuration(2, 2, 5.0, 1.0)),  # (1 + 1) / 1 / 2
        (timed(5, 5, 5), MeanDuration(3, 3, 5.0, 0.0)),
    ],
)
def test_of_few_calls_none_is_left_out(totals: Totals, expected: MeanDuration) -> None:
    assert mean_duration(totals) == expected


@pytest.mark.parametrize("share", [0.5, 0.044])
def test_estimated_calls_tell_nothing_of_how_well_the_mean_is_known(
    share: float,
) -> None:
    values = [90, 100, 110, 104] * 25 + [500]
    calls = timed(*values)
    exact, estimated = mean_duration(calls), mean_duration(calls, share)
    assert (exact.averaged, estimated.averaged) == (100, round(100 * share))
    assert estimated.mean_ns == exact.mean_ns
    fewer = (exact.averaged - 1) / (estimated.averaged - 1)
    assert estimated.error_ns2 == pytest.approx(fewer * exact.error_ns2)
    assert mean_duration(calls, 0.01).error_ns2 == inf


def test_numbers_are_exact_where_floating_point_is_not() -> None:
    # A spread of 1 ns around a day: squares of about 7e27 ns2.
    day = 86_400 * 10**9

    assert mean_duration(timed(day, day + 2, day + 4)).error_ns2 == 1.0


def mean_of(calls: int, error_ns: float) -> MeanDuration:
    return MeanDuration(calls, calls, 100.0, error_ns**2)


EXACT = mean_of(9, 0.0)


@pytest.mark.parametrize(
    ("freedom", "risk", "t"),
    # From tables of Student's t.
    [(5, 0.01, 3.365), (10, 0.01, 2.764), (30, 0.001, 3.385), (120, 0.001, 3.160)],
)
def test_the_bound_is_a_quantile_of_students_t(
    freedom: int, risk: float, t: float
) -> None:
    # The other mean is exact: then the degrees of freedom are those of one.
    bound = noise_bound_ns(EXACT, mean_of(freedom + 1, error_ns=2.0), risk)
    assert bound == pytest.approx(2 * t, rel=0.03)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 31.821), (2, 6.965), (3, 4.541), (4, 3.747)]
)
def test_of_very_few_calls_the_bound_is_too_high_rather_than_too_low(
    freedom: int, t: float
) -> None:
    bound = noise_bound_ns(EXACT, mean_of(freedom + 1, error_ns=1.0), 0.01)
    assert t <= bound <= 2 * t


def test_two_equal_errors_count_as_welch_says() -> None:
    # Equal errors of 6 calls each: 2 * 5 degrees of freedom, t(0.01) = 2.764.
    bound = noise_bound_ns(mean_of(6, error_ns=3.0), mean_of(6, error_ns=3.0), 0.01)
    assert bound == pytest.approx(2.764 * sqrt(9 + 9), rel=0.01)


def test_of_many_calls_the_bound_is_that_of_normal_distributions() -> None:
    bound = noise_bound_ns(mean_of(10**6, 3.0), mean_of(10**6, 4.0), 0.01)
    assert bound == pytest.approx(-NormalDist().inv_cdf(0.01) * 5, rel=1e-4)


def test_the_bound_of_equal_calls_and_of_a_single_one() -> None:
    assert noise_bound_ns(mean_of(5, 0.0), mean_of(5, 0.0), 0.01) == 0
    single = mean_duration(timed(5))
    assert noise_bound_ns(single, mean_of(5, 1.0), 0.01) == inf
    assert noise_bound_ns(single, single, 0.01) == inf
