"""What a difference of a few runs is measured by."""

from __future__ import annotations

import random
from math import inf

import pytest

from torchprof_hooks.profiles.run_noise import (
    Difference,
    difference_of,
    differences_of,
    in_common,
    t_quantile,
    weighted_median,
)


def values(*logs: float) -> list[float]:
    return [*logs]


@pytest.mark.parametrize(
    ("freedom", "risk", "t"),
    # From tables of Student's t.
    [(5, 0.01, 3.365), (10, 0.01, 2.764), (30, 0.001, 3.385), (120, 0.001, 3.160)],
)
def test_quantiles_of_students_t(freedom: int, risk: float, t: float) -> None:
    assert t_quantile(risk, freedom) == pytest.approx(t, rel=0.03)


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 31.821), (2, 6.965), (3, 4.541), (4, 3.747)]
)
def test_of_very_few_runs_the_bound_is_too_high_rather_than_too_low(
    freedom: int, t: float
) -> None:
    assert t <= t_quantile(0.01, freedom) <= 2 * t


def test_a_difference_of_two_sides_and_one_of_pairs() -> None:
    # Deviations of 0.1 around both means: a variance of 0.02, and 2 degrees of freedom.
    found = difference_of([values(1.0, 1.2), values(1.3, 1.5)])
    assert found == pytest.approx((0.3, (0.02 / 2 + 0.02 / 2) ** 0.5, 2))
    found = difference_of([values(0.1, 0.3, 0.2)])
    assert found == pytest.approx((0.2, (0.01 / 3) ** 0.5, 2))


def test_of_one_run_on_each_side_the_error_is_not_known() -> None:
    found = difference_of([values(1.0), values(2.0)])
    assert found == Difference(1.0, inf, 0)
    assert found.noise(0.01) == inf


def test_one_side_may_have_a_single_run() -> None:
    found = difference_of([values(1.0), values(1.3, 1.5)])
    assert found.mean == pytest.approx(0.4)
    assert found.freedom == 1
    assert found.error < inf


def test_rows_of_a_size_tell_of_each_other_and_a_noisy_one_is_no_better_known() -> None:
    rng = random.Random(0)

    def sides(spread: float) -> list[list[float]]:
        return [values(*(rng.gauss(0, spread) for _ in range(3))) for _ in "on"]

    rows = [[values(0.0, 0.0001, 0.0), values(0.0, 0.0, 0.0001)], sides(0.3)]
    rows += [sides(0.02) for _ in range(20)]
    calm, noisy, *_ = differences_of(rows, [1.0] * len(rows))
    alone = [difference_of(row) for row in rows]
    assert calm.error > 10 * alone[0].error
    assert noisy.error >= alone[1].error
    assert noisy.freedom > alone[1].freedom


def test_of_few_rows_each_stands_alone() -> None:
    rows = [[values(0.0, 0.1), values(0.2, 0.3)]] * 4
    assert differences_of(rows, [1.0] * 4) == [difference_of(row) for row in rows]
    assert differences_of([], []) == []


def test_equal_runs_are_known_as_well_as_that_can_be() -> None:
    rows = [[values(1.0, 1.0), values(1.0, 1.0)]] * 9
    assert all(0 < found.error < 1e-4 for found in differences_of(rows, range(9)))


def test_one_run_on_each_side_is_judged_by_the_other_rows() -> None:
    rng = random.Random(1)
    rows = [[values(0.0), values(rng.gauss(0, 0.02))] for _ in range(20)]
    found = differences_of(rows, range(20))
    assert all(0.005 < each.error < 0.1 for each in found)


def test_what_rows_have_in_common_is_not_what_one_of_them_does() -> None:
    rows = [values(1.0, 1.1, 1.0, 1.1), values(5.0, 5.1, 5.0, 5.1)]
    rows.append(values(3.0, 3.1, 4.0, 4.1))  # changed
    found = in_common(rows)
    assert found[1] - found[0] == pytest.approx(0.1)
    assert found[2] - found[0] == pytest.approx(0.0)


def test_the_least_change_that_is_seen() -> None:
    found = Difference(0.0, 0.01, 1000)
    assert found.visible(0.01, 0.0) == pytest.approx(0.0233 + 0.0165, rel=0.01)
    assert found.visible(0.01, 0.05) == pytest.approx(0.05 + 0.0165, rel=0.01)


def test_a_weighted_median() -> None:
    assert weighted_median([(3.0, 1), (1.0, 1), (2.0, 5)]) == 2.0
    assert weighted_median([]) == inf
