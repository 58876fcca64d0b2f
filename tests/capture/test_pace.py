"""How closely steps are looked at, with steps and prices made up."""

from __future__ import annotations

from collections import Counter

import pytest

from torchprof_hooks.capture.pace import COLD, Detail, Pace

MS = 10**6


def run(
    pace: Pace, steps: int, step_ms: float, prices_ms: dict[Detail, float]
) -> list[Detail]:
    """The details of so many steps after the warm-up, each with its price; the counts
    are as much too low as they are taken to be."""
    detail = pace.begin()
    details = []
    for _ in range(steps):
        details.append(detail)
        price_ms = prices_ms.get(detail, 0.0)
        duration_ns = round((step_ms + price_ms) * MS)
        estimate_ns = price_ms * MS / COLD
        detail = pace.next(detail, duration_ns, estimate_ns, Detail.PHASES)
    return details


def spent_share(
    details: list[Detail], step_ms: float, prices: dict[Detail, float]
) -> float:
    spent = sum(prices.get(detail, 0.0) for detail in details)
    return spent / (len(details) * step_ms)


PRICES = {Detail.MODULES: 1.0, Detail.FUNCTIONS: 5.0}


@pytest.mark.parametrize("step_ms", [5.0, 12.0, 100.0])
@pytest.mark.parametrize("budget", [0.005, 0.02, 0.1])
def test_the_budget_is_kept_and_spent(step_ms: float, budget: float) -> None:
    details = run(Pace(budget, 20, Detail.FUNCTIONS), 4000, step_ms, PRICES)
    all_at_most = (1.0 + 4.0 / 20) / step_ms
    share = spent_share(details, step_ms, PRICES)
    assert share <= budget * 1.1
    assert share >= min(budget, all_at_most) * 0.7
    assert details[0] == Detail.FUNCTIONS


def test_a_budget_for_everything() -> None:
    details = run(Pace(100.0, 1, Detail.FUNCTIONS), 50, 10.0, PRICES)
    assert set(details) == {Detail.FUNCTIONS}
    details = run(Pace(100.0, 5, Detail.FUNCTIONS), 500, 10.0, PRICES)
    counts = Counter(details)
    assert counts[Detail.PHASES] == 0
    assert 80 <= counts[Detail.FUNCTIONS] <= 120


def test_no_budget() -> None:
    details = run(Pace(0.0, 20, Detail.FUNCTIONS), 200, 10.0, PRICES)
    assert details == [Detail.FUNCTIONS] + [Detail.PHASES] * 199


def test_modules_are_the_most() -> None:
    details = run(Pace(100.0, 2, Detail.MODULES), 20, 10.0, PRICES)
    assert set(details) == {Detail.MODULES}


def test_functions_get_their_turn_where_modules_take_all() -> None:
    details = run(Pace(0.02, 20, Detail.FUNCTIONS), 4000, 12.0, PRICES)
    assert Counter(details)[Detail.FUNCTIONS] >= 4000 * 0.02 * 12 / 6 / 4


@pytest.mark.parametrize("period", [2, 3, 5])
def test_no_rhythm_of_the_program_is_followed(period: int) -> None:
    details = run(Pace(0.02, 20, Detail.FUNCTIONS), 6000, 12.0, PRICES)
    looked_at = [i for i, detail in enumerate(details) if detail > Detail.PHASES]
    counts = Counter(i % period for i in looked_at)
    even = len(looked_at) / period
    assert all(abs(counts[i] - even) < 0.25 * even for i in range(period))


def test_durations_tell_of_more_than_counts() -> None:
    pace = Pace(0.02, 20, Detail.FUNCTIONS)
    detail = pace.begin()
    details = []
    for _ in range(3000):
        details.append(detail)
        price_ms = PRICES.get(detail, 0.0)
        duration_ns = round((12.0 + price_ms) * MS)
        # counts know of a tenth
        detail = pace.next(detail, duration_ns, price_ms * MS / 10, Detail.PHASES)
    assert spent_share(details[500:], 12.0, PRICES) < 0.023
    assert pace.spent_ns == pytest.approx(
        sum(PRICES.get(d, 0.0) for d in details) * MS, rel=0.2
    )


def test_what_is_never_less() -> None:
    pace = Pace(0.0, 20, Detail.FUNCTIONS)
    assert pace.next(Detail.FUNCTIONS, MS, MS, Detail.MODULES) == Detail.MODULES
