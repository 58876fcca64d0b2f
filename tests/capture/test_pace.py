"""How closely steps are looked at, with steps and prices made up."""

from __future__ import annotations

from collections import Counter

import pytest

from torchprof_hooks.capture.sampling.pace import (
    NANOSECONDS_PER_SPAN,
    Detail,
    Pace,
    Turn,
)

MS = 10**6


def run(
    pace: Pace,
    steps: int,
    step_ms: float,
    prices_ms: dict[Detail, float],
    of_true: float = 1.0,
) -> list[Detail]:
    """The details of so many steps after the warm-up, each with its price.

    of_true: the share of the price that the number of spans suggests.
    """
    turn = pace.begin()
    details: list[Detail] = []
    while len(details) < steps:
        details += [turn.detail] * turn.steps
        price_ms = prices_ms.get(turn.detail, 0.0)
        duration_ns = round(turn.steps * (step_ms + price_ms) * MS)
        spans = round(of_true * price_ms * MS / NANOSECONDS_PER_SPAN)
        turn = pace.next(turn, duration_ns, spans, Detail.PHASES)
    return details[:steps]


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


def test_a_few_early_looks_at_functions_are_paid_for_later() -> None:
    details = run(Pace(0.001, 20, Detail.FUNCTIONS), 60_000, 12.0, PRICES)
    looked_at = [i for i, detail in enumerate(details) if detail == Detail.FUNCTIONS]
    assert looked_at[:5] == [0, 4, 16, 64, 256]
    assert spent_share(details, 12.0, PRICES) <= 0.0011


def test_no_budget() -> None:
    details = run(Pace(0.0, 20, Detail.FUNCTIONS), 200, 10.0, PRICES)
    assert details == [Detail.FUNCTIONS] + [Detail.PHASES] * 199


def test_modules_are_the_most() -> None:
    details = run(Pace(100.0, 2, Detail.MODULES), 20, 10.0, PRICES)
    assert set(details) == {Detail.MODULES}


def test_modules_and_functions_share_a_budget_that_is_too_small() -> None:
    details = run(Pace(0.02, 20, Detail.FUNCTIONS), 4000, 12.0, PRICES)
    counts = Counter(details)
    budget_ms = 4000 * 0.02 * 12
    for detail in (Detail.MODULES, Detail.FUNCTIONS):
        assert counts[detail] * PRICES[detail] >= budget_ms / 4


@pytest.mark.parametrize("period", [2, 3, 5])
def test_no_rhythm_of_the_program_is_followed(period: int) -> None:
    details = run(Pace(0.02, 20, Detail.FUNCTIONS), 6000, 12.0, PRICES)
    looked_at = [i for i, detail in enumerate(details) if detail > Detail.PHASES]
    counts = Counter(i % period for i in looked_at)
    even = len(looked_at) / period
    assert all(abs(counts[i] - even) < 0.25 * even for i in range(period))


@pytest.mark.parametrize("of_true", [0.1, 1.9])
def test_durations_tell_more_than_numbers_of_spans(of_true: float) -> None:
    details = run(Pace(0.02, 20, Detail.FUNCTIONS), 6000, 12.0, PRICES, of_true)
    assert spent_share(details[1000:], 12.0, PRICES) < 0.023


def test_what_is_never_less() -> None:
    pace = Pace(0.0, 20, Detail.FUNCTIONS)
    turn = pace.next(Turn(Detail.FUNCTIONS), MS, 1, Detail.MODULES)
    assert turn == Turn(Detail.MODULES)
