"""Which steps are looked into, and how closely, with steps and prices made up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, cycle, groupby, islice
from math import sqrt
from random import Random

import pytest

from tests.fake_clock import MS
from torchprof_hooks.capture.sampling import machine_costs, prices
from torchprof_hooks.capture.sampling.levels import Ended, Level, Run
from torchprof_hooks.capture.sampling.machine_costs import (
    USUAL_NS,
    CountedCosts,
    counted_costs,
    trivial_call_ns,
)
from torchprof_hooks.capture.sampling.prices import Prices
from torchprof_hooks.capture.sampling.scheduler import Scheduler

STEPS = 6000
#: So dear that nothing of the kind is done.
NEVER = 10**12
#: What is counted in these loops, on whatever machine.
COUNTED = CountedCosts(6_000, 3_000, NEVER, 15_000, 2_500)
#: Of `profile(max_overhead=)`, and of whole programs.
TWO = (Level.STEPS, Level.MODULES)
ALL = tuple(Level)


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "counted_costs", lambda call_ns: COUNTED)


class Loop:
    """Steps of a program: each takes `step_ms`, more or less, and what looking at it
    adds in milliseconds is the price of its level; of phases, and of what only the ends
    are seen of, the counted one.

    of_true: the share of a price that the number of spans suggests.
    pauses: how many calls and passes there are in a step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        prices_ms: Mapping[Level, float],
        *,
        step_ms: float = 20.0,
        noise: float = 0.0,
        of_true: float = 1.0,
        pauses: int = 3,
    ) -> None:
        self.scheduler = scheduler
        self.runs: list[Run] = []
        self.levels: list[Level] = []  # of each step after the warm-up
        self.least = Level.STEPS
        self.chance = Random(1)
        self.aside = 0.0  # of ours between runs, as a share of their time
        self._step_ns = step_ms * MS
        of_pauses_ns = COUNTED.pause * pauses
        self._price_ns = dict.fromkeys(Level, 0.0)
        self._price_ns[Level.PHASES] = COUNTED.watched * pauses  # all are calls
        self._spans = dict.fromkeys(Level, 0)
        for level, price_ms in prices_ms.items():
            self._price_ns[level] = price_ms * MS
            counted_ns = of_true * price_ms * MS - of_pauses_ns
            self._spans[level] = max(round(counted_ns / COUNTED.span), 0)
        self._pauses = pauses
        self._noise = noise
        self._bare_ns = self._added_ns = 0.0
        self._run = scheduler.begin(self._ended(Run(scheduler.top), 5 * self._step_ns))

    @property
    def share_looked_into(self) -> float:
        looked_into = [level for level in self.levels if level > Level.PHASES]
        return len(looked_into) / len(self.levels)

    @property
    def overhead(self) -> float:
        """What looking really took, as a share."""
        return self._added_ns / self._bare_ns

    @property
    def whole_ns(self) -> float:
        """What the steps would have taken alone."""
        return self._bare_ns

    def go_on(self, steps: int, slower: float = 1.0) -> None:
        """So many steps more, at least."""
        end = len(self.levels) + steps
        while len(self.levels) < end:
            run = self._run
            self.runs.append(run)
            added_ns = run.steps * self._price_ns[run.level]
            if run.level == Level.STEPS:
                added_ns = run.steps * self.scheduler.prices.counted_ns(Level.STEPS)
            usual_ns = run.steps * self._step_ns * slower
            noise = self._noise / sqrt(run.steps)  # each step has its own
            bare_ns = usual_ns * max(self.chance.gauss(1, noise), 0.2)
            self._added_ns += added_ns
            self._bare_ns += bare_ns
            self.levels += [run.level] * run.steps
            ended = self._ended(run, bare_ns + added_ns, self.aside * usual_ns)
            self._run = self.scheduler.next(ended, self.least)

    def _ended(self, run: Run, duration_ns: float, aside_ns: float = 0.0) -> Ended:
        level, steps = run
        is_seen = level > Level.STEPS or self.scheduler.prices.watches
        pauses = steps * self._pauses * is_seen
        spans = steps * self._spans[level] if level > Level.STEPS else pauses
        return Ended(
            run, round(duration_ns), spans, pauses, round(aside_ns), calls=pauses
        )


def run_loop(share: float, price: float, **options: float) -> Loop:
    """A loop within a budget that looks into modules, for that share of a step."""
    step_ms = options.get("step_ms", 20.0)
    prices = {Level.MODULES: price * step_ms}
    loop = Loop(Scheduler(share, TWO), prices, **options)  # type: ignore[arg-type]
    loop.go_on(STEPS)
    return loop


#: Of looking into a step of a program, in milliseconds.
PRICES = {Level.MODULES: 1.0, Level.FUNCTIONS: 5.0}


def run_program(
    share: float, steps: int, step_ms: float, every: int = 20, of_true: float = 1.0
) -> Loop:
    loop = Loop(Scheduler(share, ALL, every), PRICES, step_ms=step_ms, of_true=of_true)
    loop.go_on(steps)
    return loop


# How many


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("price", [0.02, 0.1, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("share", [0.005, 0.01, 0.05])
def test_the_budget_is_kept_and_spent(share: float, price: float, noise: float) -> None:
    loop = run_loop(share, price, noise=noise)
    assert loop.overhead <= share + 0.005
    assert loop.share_looked_into <= min(share / price, 1.0) * 1.2 + 1e-3
    assert loop.share_looked_into >= min(share / price, 1.0) * 0.6


@pytest.mark.parametrize("step_ms", [5.0, 12.0, 100.0])
@pytest.mark.parametrize("share", [0.005, 0.02, 0.1])
def test_a_program_keeps_and_spends_its_budget(share: float, step_ms: float) -> None:
    loop = run_program(share, 4000, step_ms)
    all_at_most = (1.0 + 4.0 / 20) / step_ms
    assert loop.overhead <= share * 1.1
    assert loop.overhead >= min(share, all_at_most) * 0.7
    assert loop.levels[0] == Level.FUNCTIONS


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("noise", [0.1, 0.2])
@pytest.mark.parametrize("price", [0.02, 0.1])
def test_noise_does_not_make_measuring_look_cheap(
    price: float, noise: float, seed: int
) -> None:
    loop = Loop(Scheduler(0.01, TWO), {Level.MODULES: price * 20.0}, noise=noise)
    loop.chance.seed(seed)
    loop.go_on(2000)
    assert 0.0005 <= loop.overhead <= 0.0125


@pytest.mark.parametrize("price", [0.02, 0.3, 3.0])
@pytest.mark.parametrize("of_true", [0.2, 0.5])
def test_durations_tell_of_prices_that_spans_do_not(
    price: float, of_true: float
) -> None:
    loop = run_loop(0.01, price, noise=0.02, of_true=of_true)
    assert loop.overhead <= 0.015
    assert loop.share_looked_into == pytest.approx(0.01 / price, rel=0.3)


@pytest.mark.parametrize("price", [0.05, 0.2])
def test_prices_that_spans_exaggerate_are_halved(price: float) -> None:
    loop = run_loop(0.01, price, noise=0.02, of_true=4.0)
    assert loop.share_looked_into == pytest.approx(0.01 / price / 2, rel=0.35)
    assert loop.overhead <= 0.01


@pytest.mark.parametrize("of_true", [0.2, 1.9])
def test_durations_tell_more_than_spans_in_programs_too(of_true: float) -> None:
    loop = run_program(0.02, 1000, 12.0, of_true=of_true)
    spent_before, whole_before = loop.overhead * loop.whole_ns, loop.whole_ns
    loop.go_on(5000)
    spent = loop.overhead * loop.whole_ns - spent_before
    assert spent / (loop.whole_ns - whole_before) < 0.023


@pytest.mark.slow
def test_one_stall_does_not_make_measuring_look_dear() -> None:
    usual = run_program(0.02, 1500, 100.0)
    for steps in range(1, 32):
        # GIVEN a program whose data is late, once
        loop = Loop(Scheduler(0.02, ALL, 20), PRICES, step_ms=100.0)
        loop.go_on(steps)
        loop.go_on(1, slower=30)
        # WHEN it goes on THEN as much is looked into as without
        loop.go_on(1500 - steps)
        assert loop.share_looked_into > 0.7 * usual.share_looked_into
        believed = loop.scheduler.savings.spent_ns / loop.whole_ns
        assert believed == pytest.approx(loop.overhead, rel=0.15)


def price_by(longer_ms: Sequence[float]) -> float:
    """Of the last of steps that took so much longer than those before, of 20 ms."""
    prices = Prices(COUNTED)
    for longer in longer_ms:
        prices.of(Ended(Run(Level.STEPS), 20 * MS))
        looked = Ended(Run(Level.MODULES), round((20 + longer) * MS), 100)
        price_ns = prices.of(looked)
    return price_ns / MS


@pytest.mark.parametrize("longer_ms", [(3000, 1, 1), (-19, 1, 1), (1, 3000, 1, 1)])
def test_an_outlier_of_three_does_not_set_the_price(longer_ms: Sequence[float]) -> None:
    assert price_by(longer_ms) == pytest.approx(1, rel=0.1)


def test_a_stall_in_a_step_without_does_not_make_looking_look_free() -> None:
    prices = Prices(COUNTED)

    def run(level: Level, took_ms: float) -> float:
        return prices.of(Ended(Run(level), round(took_ms * MS), 1)) / MS

    for _ in range(8):
        run(Level.STEPS, 20)
        run(Level.MODULES, 24)
    run(Level.STEPS, 2000)
    for _ in range(64):  # all that is remembered, before the next without
        price = run(Level.MODULES, 24)
    assert price == pytest.approx(4, rel=0.1)


def test_no_look_costs_more_than_the_steps_have_taken() -> None:
    assert price_by((3000, 3000, 3000, 1)) == 21


def test_chance_does_not_make_measuring_look_free() -> None:
    for noise in (0.3, 0.6):
        loop = run_loop(0.01, 0.1, noise=noise)
        assert loop.overhead <= 0.02  # never taken to be less than half of the price


def test_what_is_spent_is_known() -> None:
    for loop in (run_loop(0.01, 0.3), run_program(0.02, 4000, 12.0)):
        believed = loop.scheduler.savings.spent_ns / loop.whole_ns
        assert believed == pytest.approx(loop.overhead, rel=0.15)


def test_what_else_takes_time_is_paid_from_the_same_budget() -> None:
    loop = Loop(Scheduler(0.01, TWO), {Level.MODULES: 2.0})
    loop.aside = 0.01 / 2
    loop.go_on(STEPS)
    assert loop.share_looked_into == pytest.approx(0.1 / 2, rel=0.2)


def test_savings_are_limited() -> None:
    # GIVEN a long time in which nearly nothing was spent
    scheduler = Scheduler(0.01, TWO)
    run = Run(Level.STEPS)
    for _ in range(1000):
        scheduler.next(Ended(run, 20 * MS), Level.STEPS)
    # WHEN what there is gets spent
    run, steps = Run(Level.MODULES), 0
    while run.level == Level.MODULES or run.steps == 1:
        steps += run.steps
        spans = (
            round(1.8 * MS / COUNTED.span) * run.steps * (run.level == Level.MODULES)
        )
        run = scheduler.next(Ended(run, run.steps * 22 * MS, spans), Level.STEPS)
    # THEN it is the share of some 50 steps
    assert 3 <= steps <= 10


# On which level


def test_what_costs_nearly_nothing_is_done_in_every_step() -> None:
    loop = run_loop(0.05, 0.001)
    assert set(loop.levels) == {Level.MODULES}
    program = Loop(Scheduler(0.05, TWO), {Level.MODULES: 0.02}, pauses=0)
    program.go_on(1000)
    assert set(program.levels) == {Level.MODULES}


#: Ten times cheaper than what loops count in.
CHEAP = CountedCosts(600, 300, NEVER, 2_500, 600)


def test_where_modules_fit_into_every_step_nothing_is_left_out() -> None:
    scheduler = Scheduler(0.02, ALL, 20, Prices(CHEAP))
    prices = {Level.MODULES: 0.1, Level.FUNCTIONS: 3.0}
    loop = Loop(
        scheduler, prices, step_ms=13.0
    )  # counted in those of `COUNTED`: a tenth
    loop.go_on(4000)
    counts = Counter(loop.levels)
    assert not counts[Level.STEPS] + counts[Level.PHASES]
    assert counts[Level.FUNCTIONS] > 4000 / 50
    assert loop.overhead <= 0.02 * 1.1


def test_phases_are_timed_in_every_step_that_pays_for_them() -> None:
    loop = run_program(0.02, 4000, 12.0)  # 0.24 ms, of which three pauses take 0.075
    assert Level.STEPS not in loop.levels
    assert Counter(loop.levels)[Level.PHASES] > 2000


def test_most_steps_of_many_short_calls_are_only_counted() -> None:
    # GIVEN 100 calls of 50 us, of which timing each would take 25
    prices = {Level.MODULES: 5.0, Level.FUNCTIONS: 12.0}
    loop = Loop(Scheduler(0.02, ALL, 20), prices, step_ms=8.0, pauses=102)
    loop.go_on(20_000)
    counts = Counter(loop.levels)
    assert counts[Level.STEPS] > 14_000
    assert counts[Level.MODULES] > 15
    assert counts[Level.PHASES] > 3 * counts[Level.MODULES]  # half of the budget
    assert not loop.scheduler.prices.watches
    assert loop.overhead <= 0.02 * 1.1


def test_few_and_long_calls_are_watched() -> None:
    loop = run_loop(0.01, 0.3)
    assert loop.scheduler.prices.watches


def test_a_level_that_is_not_possible_is_not_chosen() -> None:
    loop = run_program(0.0, 200, 10.0)
    assert loop.levels == [Level.FUNCTIONS] + [Level.STEPS] * (len(loop.levels) - 1)
    loop.least = Level.MODULES
    loop.go_on(300)
    assert set(loop.levels[-100:]) == {Level.MODULES}
    loop.least = Level.PHASES
    loop.go_on(300)
    assert loop.levels[-1] == Level.PHASES


def test_a_budget_for_everything() -> None:
    prices = {Level.MODULES: 1.0, Level.FUNCTIONS: 5.0}
    for every, least, most in ((1, 50, 500), (5, 80, 120)):
        loop = Loop(Scheduler(100.0, ALL, every), prices, step_ms=10.0)
        loop.go_on(500)
        counts = Counter(loop.levels)
        assert not counts[Level.STEPS] + counts[Level.PHASES]
        assert least <= counts[Level.FUNCTIONS] <= most
        if every == 1:
            assert not counts[Level.MODULES]


def test_a_few_early_looks_at_functions_are_paid_for_later() -> None:
    loop = run_program(0.001, 60_000, 12.0)
    looked_at = [i for i, level in enumerate(loop.levels) if level == Level.FUNCTIONS]
    assert looked_at[:5] == [0, 4, 16, 64, 256]
    assert loop.overhead <= 0.0011


def test_training_is_looked_into_early_however_many_evaluations_came_before() -> None:
    # GIVEN a program that has evaluated for long, and trains after each four of these
    scheduler = Scheduler(0.001, ALL)
    kinds = chain([False] * 500, cycle([True, *[False] * 4]))
    run = scheduler.begin(Ended(Run(Level.FUNCTIONS), 10 * MS, 1000, evaluations=1))
    looked_at: list[int] = []
    trained = 0
    # WHEN it goes on
    while trained < 70:
        trains = list(islice(kinds, run.steps))
        if run.level == Level.FUNCTIONS:
            looked_at += range(trained + 1, trained + sum(trains) + 1)
        trained += sum(trains)
        spans = 1000 * run.steps * (run.level == Level.FUNCTIONS)
        evaluations = run.steps - sum(trains)
        ended = Ended(run, 10 * MS * run.steps, spans, evaluations=evaluations)
        run = scheduler.next(ended, Level.STEPS)
    # THEN single steps of training are looked into, which are paid for later
    assert len(looked_at) in range(4, 10)
    assert looked_at[0] <= 30  # when a run has ended that began before
    assert looked_at[-1] >= 64


def test_modules_are_the_most() -> None:
    loop = Loop(Scheduler(100.0, ALL[:3], 2), {Level.MODULES: 1.0}, step_ms=10.0)
    loop.go_on(20)
    assert set(loop.levels) == {Level.MODULES}


def test_modules_and_functions_share_a_budget_that_is_too_small() -> None:
    loop = run_program(0.02, 4000, 12.0)
    counts = Counter(loop.levels)
    for level in (Level.MODULES, Level.FUNCTIONS):
        spent_ns = counts[level] * PRICES[level] * MS
        assert spent_ns >= loop.overhead * loop.whole_ns / 5


# When


def test_several_steps_in_a_row_once_something_is_known() -> None:
    loop = run_loop(0.05, 0.1)
    sizes = [run.steps for run in loop.runs if run.level == Level.MODULES]
    assert sizes[:4] == [1, 1, 2, 4]
    assert set(sizes[4:]) == {4}


def test_waiting_has_an_end() -> None:
    # GIVEN a price of 600 steps' savings for each measured one, of which 4 are one run
    loop = Loop(Scheduler(0.005, TWO), {Level.MODULES: 60.0})
    loop.go_on(60_000)
    is_bare = [level == Level.STEPS for level in loop.levels]
    waits = [len(list(same)) for is_on, same in groupby(is_bare) if is_on]
    # THEN it waits until they are paid for, and hardly longer
    always_ns = COUNTED.step + 3 * COUNTED.watched
    income = 0.005 - always_ns / (20 * MS)
    assert len(waits) > 15
    assert 4 * 3.0 / income <= max(waits) <= 4 * 3.0 / income + 128
    # and sees again now and then, whatever has been spent
    scheduler = Scheduler(0.001, TWO)
    scheduler.savings.spend(1e15)
    assert (
        1 <= scheduler.next(Ended(Run(Level.MODULES), MS, 1), Level.STEPS).steps <= 128
    )


@pytest.mark.parametrize("period", [2, 3, 5])
def test_no_rhythm_of_the_program_is_followed(period: int) -> None:
    for loop in (run_loop(0.01, 0.1), run_program(0.02, STEPS, 12.0)):
        looked_at = [i for i, level in enumerate(loop.levels) if level > Level.PHASES]
        counts = Counter(i % period for i in looked_at)
        even = len(looked_at) / period
        assert all(abs(counts[i] - even) < 0.3 * even for i in range(period))


def test_the_same_steps_are_drawn_each_time() -> None:
    first, second = (run_loop(0.01, 0.3, noise=0.1) for _ in range(2))
    assert first.levels == second.levels


def test_steps_that_nothing_can_be_saved_in_are_not_measured() -> None:
    loop = run_loop(0.01, 1.0, step_ms=0.3)
    assert loop.share_looked_into * len(loop.levels) <= 2


def test_it_goes_on_when_steps_become_longer() -> None:
    loop = Loop(Scheduler(0.01, TWO), {Level.MODULES: 0.05}, step_ms=0.5)
    loop.go_on(200)
    before = loop.share_looked_into * len(loop.levels)
    loop.go_on(3000, slower=40)
    assert loop.share_looked_into * len(loop.levels) > before + 100


def test_steps_that_are_too_short_make_no_debts() -> None:
    scheduler = Scheduler(0.01, TWO)
    run = Run(Level.STEPS, 64)
    for _ in range(1000):  # of 0.1 ms
        run = scheduler.next(
            Ended(run, run.steps * 100_000, aside_ns=30_000), Level.STEPS
        )
    steps = 0
    while run.level == Level.STEPS:  # of 50 ms
        steps += run.steps
        run = scheduler.next(Ended(run, run.steps * 50_000_000), Level.STEPS)
    assert steps < 1000


def test_evaluation_calls_between_steps_of_many_calls_are_watched() -> None:
    """Those that nobody sees make the step after them look longer than all others."""
    scheduler = Scheduler(0.02, ALL, 20)
    run = scheduler.begin(Ended(Run(Level.FUNCTIONS), 5 * MS, 60, 8))
    watched: list[bool] = []
    for step in range(4000):
        is_training = step % 5 == 0
        pauses, duration_ns = (12, 5 * MS) if is_training else (1, 2 * MS)
        is_seen = run.level > Level.STEPS
        run = scheduler.next(
            Ended(
                run._replace(steps=1),
                duration_ns,
                is_seen * 8 * pauses,
                is_seen * pauses,
                evaluations=not is_training,
                calls=is_seen * pauses,
            ),
            Level.STEPS,
        )
        watched.append(scheduler.prices.watches)
    assert all(watched[100:])


def test_waiting_for_evaluations_leaves_half_for_looking_where_there_are_none() -> None:
    # GIVEN steps whose calls take little more to be watched than may be spent
    prices = Prices(COUNTED)
    prices.of(Ended(Run(Level.PHASES), 2 * MS, 0, 10, calls=10))
    bare_ns = 2 * MS - 10 * COUNTED.watched
    share = (COUNTED.step + 10 * COUNTED.watched) / bare_ns

    def is_chosen(most: float) -> bool:
        prices.choose_watching(most)
        return prices.watches

    # WHEN no evaluation is seen THEN they are watched for half of that alone
    assert not is_chosen(1.6 * share)
    assert is_chosen(2.1 * share)
    # WHEN one is THEN for three quarters
    prices.of(Ended(Run(Level.STEPS), MS, evaluations=1))
    assert is_chosen(1.35 * share)
    # UNTIL there was none for long
    for _ in range(200):
        prices.of(Ended(Run(Level.PHASES), 2 * MS, 0, 10, calls=10))
    assert not is_chosen(1.01 * share)


def test_what_is_counted_is_what_this_machine_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readings = iter([0, 9000, 0, 2000, 0, 4000])
    monkeypatch.setattr(machine_costs, "perf_counter_ns", lambda: next(readings))
    assert trivial_call_ns() == 100  # the shortest, of 20 calls
    assert counted_costs(200.0).span == 2 * counted_costs(100.0).span


def test_what_is_counted_is_what_it_takes_in_quiet_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns, believed_ns = 150.0, 0.0

    def counted_now(call_ns: float) -> CountedCosts:
        nonlocal believed_ns
        believed_ns = call_ns
        return COUNTED

    monkeypatch.setattr(prices, "trivial_call_ns", lambda: now_ns)
    monkeypatch.setattr(prices, "counted_costs", counted_now)
    machine, step = Prices(), Ended(Run(Level.MODULES), MS)
    assert believed_ns == 150.0
    now_ns = 60.0
    machine.of(step)
    assert believed_ns == 60.0
    now_ns = 90.0  # for longer than that is remembered
    machine.of(step)
    assert believed_ns == 60.0
    for _ in range(100):
        machine.of(step)
    assert believed_ns == 90.0
    now_ns = 0.0  # a clock that stands still
    machine.of(step)
    assert believed_ns == USUAL_NS


def test_when_a_run_that_does_not_end_is_out_of_hand() -> None:
    def running(seconds: float, spans: int) -> Ended:
        return Ended(Run(Level.FUNCTIONS), round(seconds * 1e9), spans)

    costs = CountedCosts(500, 1_000, 1_000, 2_000, 100_000)
    scheduler = Scheduler(0.02, ALL, 20, Prices(costs))
    assert not scheduler.is_out_of_hand(running(2, 9_000))
    assert scheduler.is_out_of_hand(running(2, 11_000))
    assert not scheduler.is_out_of_hand(running(60, 11_000))  # which has earned more
    scheduler.begin(running(100, 11_000))
    assert not scheduler.is_out_of_hand(running(2, 11_000))
    scheduler.next(
        running(3, 11_000), Level.STEPS
    )  # of the first step nothing is known
    assert not scheduler.is_out_of_hand(running(11, 20_000))
    assert scheduler.is_out_of_hand(running(13, 20_000))
    scheduler = Scheduler(1.0, ALL, 20, Prices(costs))
    assert not scheduler.is_out_of_hand(running(2, 10**6))
