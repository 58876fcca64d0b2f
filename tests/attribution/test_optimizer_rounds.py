"""Which of several optimizers a training step ends with."""

from __future__ import annotations

from itertools import cycle, islice

import pytest

from torchprof_hooks.capture.optimizer_rounds import (
    PATIENCE,
    OptimizerRounds,
    RoundEnd,
)


class Optimizer:
    """Anything that can die."""


def ended(rounds: OptimizerRounds, *optimizers: object) -> list[int]:
    """How many training steps end with each step."""
    return [end(rounds, optimizer).steps for optimizer in optimizers]


def end(rounds: OptimizerRounds, *optimizers: object) -> RoundEnd:
    """What ends with these, which step at once."""
    for optimizer in optimizers:
        rounds.stepped(optimizer)
    return rounds.ended()


def test_optimizers_that_take_turns_are_one_step() -> None:
    rounds, critic, generator = OptimizerRounds(), Optimizer(), Optimizer()
    assert end(rounds, critic) == (1, True)
    assert end(rounds, generator) == (1, True)  # nobody could know
    assert ended(rounds, *[critic, generator] * 4) == [0, 1] * 4


def test_the_rarest_of_optimizers_ends_the_step() -> None:
    rounds, critic, generator = OptimizerRounds(), Optimizer(), Optimizer()
    assert ended(rounds, *[critic] * 5, generator) == [1] * 6
    for _ in range(4):
        assert ended(rounds, *[critic] * 5, generator) == [0] * 5 + [1]


MANY = (62, 161, 300)


@pytest.mark.parametrize("count", MANY)
def test_many_in_one_step(count: int) -> None:
    rounds, each = OptimizerRounds(), [Optimizer() for _ in range(count)]
    ended(rounds, *each)
    for _ in range(5):
        assert ended(rounds, *each[::-1]) == [0] * (count - 1) + [1]


@pytest.mark.parametrize("count", MANY)
def test_those_that_step_at_once_end_one_step(count: int) -> None:
    rounds, each = OptimizerRounds(), [Optimizer() for _ in range(count)]
    late, rest = each[:40], each[40:]
    assert [end(rounds, *each[20:]).steps for _ in range(5)] == [1] * 5
    assert [end(rounds, *each) for _ in range(2)] == [(1, True), (1, False)]
    # Some are given up, and come back.
    given_up = [end(rounds, *rest).steps for _ in range(100)]
    assert (sum(given_up), given_up[-1]) == (100, 1)
    assert [end(rounds, *each).steps for _ in range(5)] == [1] * 5
    assert end(rounds, *late).steps == 0  # one part of a step
    assert end(rounds, *rest).steps == 1  # and the other


def test_many_that_take_turns_with_others() -> None:
    rounds, critics = OptimizerRounds(), [Optimizer() for _ in range(62)]
    generators = [Optimizer() for _ in range(62)]
    found = [end(rounds, *each).steps for each in [critics, generators] * 5]
    assert found == [1, 1] + [0, 1] * 4  # nobody could know


def test_one_that_is_not_used_any_more_is_given_up() -> None:
    rounds, old, new = OptimizerRounds(), Optimizer(), Optimizer()
    ended(rounds, *[old] * 100, new, old, new)
    found = ended(rounds, *[new] * 100)
    assert sum(found) == 100  # those that it was waited in vain for were steps
    assert found[PATIENCE + 1 :] == [1] * (100 - PATIENCE - 1)


@pytest.mark.parametrize("epoch", [PATIENCE + 2, 100, 300])
@pytest.mark.parametrize("count", [2, 3])
def test_optimizers_that_take_turns_by_epochs(epoch: int, count: int) -> None:
    rounds, some = OptimizerRounds(), [Optimizer() for _ in range(count)]
    for one in islice(cycle(some), 12):
        assert sum(ended(rounds, *[one] * epoch)) == epoch


def test_the_dead_are_not_waited_for() -> None:
    rounds = OptimizerRounds()
    for _ in range(5):
        optimizer = Optimizer()
        assert ended(rounds, optimizer, optimizer, optimizer) == [1, 1, 1]
        del optimizer
    assert not rounds.living


def test_nothing_grows() -> None:
    rounds, some = OptimizerRounds(), [Optimizer() for _ in range(3)]
    ended(rounds, *islice(cycle(some), 10_000))
    for kept in vars(rounds).values():
        assert not hasattr(kept, "__len__") or len(kept) <= 3
