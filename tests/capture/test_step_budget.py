"""Which steps are measured, with steps and prices made up."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from math import sqrt
from random import Random

import pytest

from torchprof_hooks.capture.sampling.pace import NANOSECONDS_PER_SPAN
from torchprof_hooks.capture.sampling.step_budget import (
    NANOSECONDS_PER_STEP,
    Run,
    StepBudget,
)

MS = 10**6
STEPS = 6000


class Loop:
    """Steps of a program: each takes `step_ms`, more or less, and what measuring adds
    is `price` of that.

    of_true: the share of the price that the number of spans suggests.
    """

    def __init__(
        self,
        budget: StepBudget,
        price: float,
        step_ms: float = 20.0,
        noise: float = 0.0,
        of_true: float = 1.0,
    ) -> None:
        self.budget = budget
        self.runs: list[Run] = []
        self.measured: list[bool] = []  # of each step after the warm-up, whether it was
        self._step_ns = step_ms * MS
        self._price = price
        self._noise = noise
        self._spans = round(of_true * price * self._step_ns / NANOSECONDS_PER_SPAN)
        self.chance = Random(1)
        self.aside = 0.0  # of ours between runs, as a share of their time
        self._bare_ns = self._added_ns = 0.0
        budget.book_warm_up(round(5 * self._step_ns), self._spans)
        self._run = Run(is_measured=True)

    @property
    def share_measured(self) -> float:
        return sum(self.measured) / len(self.measured)

    @property
    def overhead(self) -> float:
        """What measuring really took, as a share."""
        return self._added_ns / self._bare_ns

    def go_on(self, steps: int, slower: float = 1.0) -> None:
        """So many steps more, at least."""
        end = len(self.measured) + steps
        while len(self.measured) < end:
            run = self._run
            self.runs.append(run)
            added_ns = run.steps * run.is_measured * self._price * self._step_ns
            usual_ns = run.steps * self._step_ns * slower
            noise = self._noise / sqrt(run.steps)  # each step has its own
            bare_ns = usual_ns * max(self.chance.gauss(1, noise), 0.2)
            self._added_ns += added_ns
            self._bare_ns += bare_ns
            self.measured += [run.is_measured] * run.steps
            spans = self._spans * run.steps * run.is_measured
            aside_ns = round(self.aside * usual_ns)
            self._run = self.budget.next(
                run, round(bare_ns + added_ns), spans, aside_ns
            )


def run_loop(share: float, price: float, **options: float) -> Loop:
    loop = Loop(StepBudget(share), price, **options)
    loop.go_on(STEPS)
    return loop


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("price", [0.02, 0.1, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("share", [0.005, 0.01, 0.05])
def test_the_budget_is_kept_and_spent(share: float, price: float, noise: float) -> None:
    loop = run_loop(share, price, noise=noise)
    assert loop.overhead <= share + 0.005
    assert loop.share_measured <= min(share / price, 1.0) * 1.2 + 1e-3
    assert loop.share_measured >= min(share / price, 1.0) * 0.6


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noise", [0.1, 0.2])
@pytest.mark.parametrize("price", [0.02, 0.1])
def test_noise_does_not_make_measuring_look_cheap(
    price: float, noise: float, seed: int
) -> None:
    loop = Loop(StepBudget(0.01), price, noise=noise)
    loop.chance.seed(seed)
    loop.go_on(2000)
    assert 0.002 <= loop.overhead <= 0.0125


@pytest.mark.parametrize("price", [0.02, 0.3, 3.0])
@pytest.mark.parametrize("of_true", [0.2, 0.5])
def test_durations_tell_of_prices_that_spans_do_not(
    price: float, of_true: float
) -> None:
    loop = run_loop(0.01, price, noise=0.02, of_true=of_true)
    assert loop.overhead <= 0.015
    assert loop.share_measured == pytest.approx(0.01 / price, rel=0.3)


@pytest.mark.parametrize("price", [0.05, 0.2])
def test_prices_that_spans_exaggerate_are_halved(price: float) -> None:
    loop = run_loop(0.01, price, noise=0.02, of_true=4.0)
    assert loop.share_measured == pytest.approx(0.01 / price / 2, rel=0.35)
    assert loop.overhead <= 0.01


def test_what_costs_nearly_nothing_is_measured_nearly_always() -> None:
    loop = run_loop(0.05, 0.001)
    assert loop.share_measured > 0.97
    assert not all(loop.measured)  # some are left out to compare with


def test_chance_does_not_make_measuring_look_free() -> None:
    for noise in (0.3, 0.6):
        loop = run_loop(0.01, 0.1, noise=noise)
        assert loop.overhead <= 0.02  # never taken to be less than half of the price


def test_what_is_spent_is_known() -> None:
    loop = run_loop(0.01, 0.3)
    whole_ns = len(loop.measured) * 20 * MS
    assert loop.budget.savings.spent_ns / whole_ns == pytest.approx(
        loop.overhead, rel=0.15
    )


def test_steps_that_nothing_can_be_saved_in_are_not_measured() -> None:
    loop = run_loop(0.01, 1.0, step_ms=0.3)
    assert sum(loop.measured) <= 2


def test_it_goes_on_when_steps_become_longer() -> None:
    loop = Loop(StepBudget(0.01), 0.1, step_ms=0.5)
    loop.go_on(200)
    before = sum(loop.measured)
    loop.go_on(3000, slower=40)
    assert sum(loop.measured) > before + 100


def test_what_else_takes_time_is_paid_from_the_same_budget() -> None:
    loop = Loop(StepBudget(0.01), 0.1)
    loop.aside = 0.01 / 2
    loop.go_on(STEPS)
    assert loop.share_measured == pytest.approx(0.1 / 2, rel=0.2)


def test_savings_are_limited() -> None:
    # GIVEN a long time in which nearly nothing was spent
    budget = StepBudget(0.01)
    for _ in range(1000):
        budget.next(Run(is_measured=False), 20 * MS, 0, 0)
    # WHEN what there is gets spent
    run, steps = Run(is_measured=True), 0
    while run.is_measured or run.steps == 1:
        steps += run.steps
        run = budget.next(run, run.steps * 22 * MS, 300 * run.steps, 0)
    # THEN it is the share of some 50 steps
    assert 3 <= steps <= 10


def test_several_steps_in_a_row_once_something_is_known() -> None:
    loop = run_loop(0.05, 0.1)
    sizes = [run.steps for run in loop.runs if run.is_measured]
    assert sizes[:4] == [1, 1, 2, 4]
    assert set(sizes[4:]) == {4}


def test_waiting_has_an_end() -> None:
    # GIVEN a price of 600 steps' savings for each measured one, of which 4 are one run
    loop = Loop(StepBudget(0.005), price=3.0)
    loop.go_on(60_000)
    waits = [len(list(same)) for is_on, same in groupby(loop.measured) if not is_on]
    # THEN it waits until they are paid for, and hardly longer
    income = 0.005 - NANOSECONDS_PER_STEP / (20 * MS)
    assert len(waits) > 15
    assert 4 * 3.0 / income <= max(waits) <= 4 * 3.0 / income + 128
    # and sees again now and then, whatever has been spent
    budget = StepBudget(0.001)
    budget.savings.spend(1e15)
    assert 1 <= budget.next(Run(is_measured=True), MS, 1, 0).steps <= 128


@pytest.mark.parametrize("period", [2, 3, 5])
def test_no_rhythm_of_the_program_is_followed(period: int) -> None:
    loop = run_loop(0.01, 0.1)
    counts = Counter(i % period for i, is_on in enumerate(loop.measured) if is_on)
    even = sum(counts.values()) / period
    assert all(abs(counts[i] - even) < 0.3 * even for i in range(period))


def test_the_same_steps_are_drawn_each_time() -> None:
    first, second = (run_loop(0.01, 0.3, noise=0.1) for _ in range(2))
    assert first.measured == second.measured


def test_steps_that_are_too_short_make_no_debts() -> None:
    budget = StepBudget(0.01)
    run = Run(is_measured=False, steps=64)
    for _ in range(1000):  # of 0.1 ms
        run = budget.next(run, run.steps * 100_000, 0, 30_000)
    steps = 0
    while not run.is_measured:  # of 50 ms
        steps += run.steps
        run = budget.next(run, run.steps * 50_000_000, 0, 0)
    assert steps < 1000
