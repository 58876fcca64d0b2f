"""Which steps are measured: programs that are played, whose true costs are known."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from math import inf
from random import Random
from typing import NamedTuple

import pytest
import torch

from torchprof_hooks.capture.duty import (
    LEAST_NS,
    LEAST_STEPS,
    MOST_OFF,
    PRIOR_BLOCKS,
    REMEMBERED,
    Block,
    Cost,
    Duty,
    Kind,
    Plan,
)

MS = 1_000_000
OFF, ON = Kind.OFF, Kind.ON


class Program(NamedTuple):
    """A program to be played.

    on, off: what measuring adds to a step, as a share of what it takes otherwise.
    step_ms, evaluation_ms: what training steps and evaluation calls take.
    evaluations: after 100 training steps, so many evaluation calls follow.
    noise: about how much steps differ: each by itself, and together for a while.
    outliers: the share of steps that take 2 to 10 times as long.
    off_is_known: whether of off blocks, what is counted is the truth.
    """

    on: float = 0.03
    off: float = 0.002
    step_ms: float = 13
    evaluation_ms: float = 40
    evaluations: int = 0
    noise: float = 0.05
    outliers: float = 0.002
    off_is_known: bool = False


class Played(NamedTuple):
    """What came of it.

    blocks: with the plans that they had.
    bare_ns, cost_ns: what the program took by itself, and what measuring added.
    """

    duty: Duty
    blocks: list[tuple[Plan, Block]]
    bare_ns: float
    cost_ns: float

    @property
    def cost(self) -> float:
        """What measuring cost, as a share of the rest."""
        return self.cost_ns / self.bare_ns

    def of(self, kind: Kind) -> list[Block]:
        return [block for _, block in self.blocks if block.kind is kind]

    def off_share(self) -> float:
        """How long off blocks are, in relation to on blocks."""
        off_ns, on_ns = (sum(b.took_ns for b in self.of(k)) for k in (OFF, ON))
        return off_ns / on_ns


@cache
def play(
    program: Program,
    budget: float,
    prior: float = 1.0,
    seconds: float = 120,
) -> Played:
    """The program, measured for so long.

    prior: how many times the true cost is what is counted beforehand.
    """
    duty = Duty(budget)
    shares = {OFF: program.off, ON: program.on}
    priors = {OFF: 1.0} if program.off_is_known else {}
    steps = _steps(program, Random(0))
    bare_ns = cost_ns = 0.0
    plan = duty.begin(Block(ON, 1, 50 * MS))
    blocks = []
    while bare_ns < seconds * 1e9:
        block, share, cost_before_ns = Block(plan.kind), shares[plan.kind], cost_ns
        counts = [0, 0, 0, 0]  # of training steps, of evaluation calls
        while not plan.is_over(block):
            at, usual_ns, ns = next(steps)
            bare_ns, cost_ns = bare_ns + ns, cost_ns + usual_ns * share
            counts[at] += 1
            counts[at + 1] += round(ns + usual_ns * share)
            block = Block(plan.kind, *counts)
        counted_ns = priors.get(plan.kind, prior) * (cost_ns - cost_before_ns)
        block = block._replace(counted_ns=counted_ns)
        blocks.append((plan, block))
        plan = duty.next(block)
    return Played(duty, blocks, bare_ns, cost_ns)


def _steps(program: Program, generator: Random) -> Iterator[tuple[int, float, float]]:
    """0 for a training step or 2 for an evaluation call, what these take usually, and
    what it takes."""
    drift, number, noise = 0.0, 0, program.noise / 2
    while True:
        is_training = number % (100 + program.evaluations) < 100
        number += 1
        usual_ns = (program.step_ms if is_training else program.evaluation_ms) * MS
        drift = 0.9 * drift + generator.gauss(0, noise)
        ns = usual_ns * max(1 + drift / 2, 0.3) * (1 + abs(generator.gauss(0, noise)))
        if generator.random() < program.outliers:
            ns *= generator.uniform(2, 10)
        yield 0 if is_training else 2, usual_ns, ns


# The budget

PROGRAMS = {
    "cheap": Program(),
    "short steps": Program(0.08, 0.005, step_ms=3.5),
    "dear": Program(0.3, 0.005, step_ms=3.5),
    "long steps": Program(0.2, step_ms=150),
    "noisy": Program(0.3, 0.005, noise=0.3, outliers=0.01),
    "with evaluations": Program(0.1, evaluations=50),
}
every_program = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)

#: So much may be spent, by budget, if what is counted beforehand is so many times the
#: truth.
LIMITS = {
    (0.05, 0.5): 0.06,
    (0.05, 1.0): 0.05,
    (0.05, 2.0): 0.05,
    (0.01, 0.5): 0.016,
    (0.01, 1.0): 0.011,
    (0.01, 2.0): 0.011,
}


@every_program
@pytest.mark.parametrize(("budget", "prior"), LIMITS)
def test_measuring_keeps_to_the_budget_and_tells_what_it_took(
    program: Program, budget: float, prior: float
) -> None:
    played = play(program, budget, prior)
    assert played.cost <= LIMITS[budget, prior]
    told_ns, error_ns = played.duty.spent()
    assert abs(told_ns - played.cost_ns) <= max(3 * error_ns, 0.01 * played.bare_ns)


@every_program
def test_the_budget_is_used_if_there_is_need_of_it(program: Program) -> None:
    played = play(program, 0.05)
    assert played.cost > 0.04 or played.off_share() < 1 / 4


def test_a_cost_that_was_overestimated_by_far_is_found_out() -> None:
    played = play(Program(off_is_known=True), 0.05, prior=100.0, seconds=300)
    assert played.of(OFF)[0].took_ns > 10e9
    assert played.duty.cost(ON).share == pytest.approx(0.03, abs=0.01)


@pytest.mark.parametrize("budget", [0.001, 0.002])
def test_a_budget_below_the_cost_of_off_blocks_measures_one_in_200(
    budget: float,
) -> None:
    played = play(Program(), budget, seconds=300)
    assert played.off_share() == pytest.approx(MOST_OFF, rel=0.1)


@pytest.mark.parametrize("budget", [1.0, 2.0, inf])
def test_a_budget_without_a_limit_measures_all_and_never_switches(
    budget: float,
) -> None:
    duty = Duty(budget)
    plans = [duty.begin(Block(ON, 1, 9, 0, 0, 5))]
    plans += [duty.next(Block(ON, 1, 100, 0, 0, 99)) for _ in range(9)]
    assert duty.measures_all
    assert {plan.kind for plan in plans} == {ON}


# Blocks


@every_program
@pytest.mark.parametrize("budget", [0.05, 0.01])
def test_on_and_off_blocks_take_turns_and_have_some_steps_and_some_time(
    program: Program, budget: float
) -> None:
    blocks = [block for _, block in play(program, budget).blocks]
    assert {(a.kind, b.kind) for a, b in pairwise(blocks)} == {(ON, OFF), (OFF, ON)}
    assert min(block.steps for block in blocks) >= LEAST_STEPS == 4
    assert min(block.took_ns for block in blocks) >= LEAST_NS == 100 * MS


@pytest.mark.parametrize("step_ms", [13.0, 150.0])
@pytest.mark.parametrize(
    ("on", "budget", "least", "most"),
    [
        (0.0, 0.05, 1 / 7, 1 / 5),  # never less
        (0.05, 0.05, 1 / 7, 1 / 5),
        (0.1, 0.05, 0.9, 1.3),
        (0.5, 0.05, 8, 10.5),
        (9.0, 0.01, 133, 267),  # never more, but by chance
    ],
)
def test_off_blocks_are_as_long_as_the_cost_wants(
    on: float, budget: float, least: float, most: float, step_ms: float
) -> None:
    program = Program(on, 0.0, step_ms=step_ms)
    assert least <= play(program, budget, seconds=300).off_share() <= most


def test_lengths_are_random_and_the_same_in_each_run() -> None:
    before = random.getstate(), torch.get_rng_state().tolist()
    first, again = (
        [plan for plan, _ in play(Program(), 0.05, seconds=seconds).blocks]
        for seconds in (60, 60.0 + 1e-9)  # played again
    )
    assert (random.getstate(), torch.get_rng_state().tolist()) == before
    assert first == again
    of_kinds = [{plan.lasts_ns for plan in first if plan.kind is k} for k in (OFF, ON)]
    assert sum(map(len, of_kinds)) >= len(first) - 1
    assert {max(lasts) / min(lasts) > 1.5 for lasts in of_kinds} == {True}


def test_evaluations_are_measured_as_often_as_training_by_their_time() -> None:
    played = play(PROGRAMS["with evaluations"], 0.05, seconds=300)
    on, blocks = played.of(ON), [block for _, block in played.blocks]
    trained, evaluated = (
        sum(getattr(block, name) for block in on)
        / sum(getattr(block, name) for block in blocks)
        for name in ("trained_ns", "evaluated_ns")
    )
    assert 0.3 < trained < 0.7
    assert evaluated == pytest.approx(trained, rel=0.1)


# What is learned

OFF_BLOCK = Block(OFF, 10, 100 * MS)


def learned(*blocks: Block, times: int = 9, off: Block = OFF_BLOCK) -> Duty:
    """What comes of on blocks, each after an off block."""
    duty = Duty(0.05)
    duty.begin(Block(ON, 1, 50 * MS))
    for block in blocks * times:
        duty.next(off)
        duty.next(block)
    return duty


def on(share: float, counted: float = 0.0) -> Block:
    """An on block that takes longer by a share, and seems to by what was counted."""
    ns = 200 * (1 + share) * MS
    return Block(ON, 20, round(ns), counted_ns=ns * counted / (1 + counted))


#: Of the training steps and evaluation calls in an off block.
MIXED = Block(OFF, 10, 100 * MS, 10, 400 * MS)
EVALUATED = Block(ON, 0, 0, 10, 480 * MS)
MANY = [on(share) for share in (0.26, 0.28, 0.3, 0.32, 9.0)]
#: What a share of cost is learned, from which blocks, so many times.
LEARNED: dict[str, tuple[float, Duty]] = {
    "the middle of these and of four zeros": (0.29, learned(*MANY, times=4)),
    "never less than nothing": (0.0, learned(on(-0.2))),
    "one comparison: what was counted": (0.4, learned(on(0.2, 0.4), times=1)),
    "three, too": (0.4, learned(on(0.2, 0.4), times=3)),
    "four: half of each": (0.3, learned(on(0.2, 0.4), times=PRIOR_BLOCKS)),
    "five": (0.2, learned(on(0.2, 0.4), times=5)),
    "what was counted last": (0.4, learned(on(0.2, 0.9), on(0.2, 0.4), times=1)),
    "training with training, calls with calls": (
        0.1,
        learned(Block(ON, 30, 330 * MS, 1, 44 * MS), off=MIXED),
    ),
    "what off blocks cost, too": (
        1.2 / 0.9 - 1,
        learned(on(0.2), off=OFF_BLOCK._replace(counted_ns=10 * MS)),
    ),
    "evaluation calls alone": (0.2, learned(EVALUATED, off=MIXED)),
    "training alone": (0.3, learned(on(0.3), off=MIXED)),
    "nothing to compare": (0.0, learned(EVALUATED)),
}


@pytest.mark.parametrize(("share", "duty"), LEARNED.values(), ids=LEARNED)
def test_the_cost_is_by_how_much_steps_take_longer(share: float, duty: Duty) -> None:
    assert duty.cost(ON).share == pytest.approx(share)
    assert share or duty.spent()[0] == 0


def test_the_error_is_known_from_five_comparisons_on() -> None:
    few, some = (learned(on(0.2), on(0.3), times=times) for times in (2, 3))
    assert few.cost(ON).error == 0 < some.cost(ON).error
    error = learned(*MANY, times=4).cost(ON).error
    assert error == pytest.approx(1.483 * 1.253 * 0.02 / 20**0.5)


def test_what_happened_long_ago_is_forgotten() -> None:
    duty = learned(*[on(0.5, 0.1)] * 200, *[on(0.1, 0.1)] * REMEMBERED, times=1)
    cost = duty.cost(ON)
    assert [cost.share, cost.error] == pytest.approx([0.1, 0.0])
    assert max(map(len, duty._compared.values())) == REMEMBERED == 64


def test_traced_blocks_tell_nothing() -> None:
    one, other = learned(on(0.2)), learned(on(0.2))
    plan = one.next(Block(Kind.TRACED, 1, 900 * MS, counted_ns=300 * MS))
    assert plan.kind is ON
    assert one.spent() == other.spent()
    assert one.cost(Kind.TRACED) == Cost(0.0)
    assert one.next(on(0.4)).kind is other.next(on(0.4)).kind is OFF
    assert one.spent() == other.spent()


def test_the_first_step_costs_what_was_counted() -> None:
    duty = Duty(0.05)
    assert duty.begin(Block(ON, 1, 900 * MS, counted_ns=3)).kind is ON
    assert duty.spent() == (3, 0)
