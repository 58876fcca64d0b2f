"""Which memory grows from step to step, of whom, how fast and since when; and that
nobody is told of growth where there is none."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest
import torch
from torch import nn

from tests.attribution.simulated_memory import (
    WITHOUT_LEAK,
    Situation,
    leak,
    simulated,
)
from tests.cores import NATIVE_CORE
from tests.thorough import IS_THOROUGH, THOROUGH
from torchprof_hooks import Profile, profile
from torchprof_hooks.instruments.memory.steps import Growth, Holder
from torchprof_hooks.profiles.memory import GrowingMemory

pytestmark = NATIVE_CORE

NUMBER: Final = 4

# In simulation

#: Of so many runs without a leak, one may be said to have one (docs/limits.md).
RUNS_PER_ALARM: Final = 1000
SEEDS: Final = range(20 if IS_THOROUGH else 3)


def any_situations(choose: random.Random) -> list[tuple[str, Situation]]:
    """Each has an owner of its own, or shares one."""
    return [(str(choose.randrange(8)), each) for each in WITHOUT_LEAK]


def any_length(choose: random.Random) -> int:
    """20 to 400 steps; short ones as often as long ones."""
    return int(20 * 20 ** choose.random())


@pytest.mark.parametrize(
    "seeds",
    [
        range(100),
        pytest.param(
            range(100, 100 + 2 * RUNS_PER_ALARM),
            marks=[pytest.mark.slow, pytest.mark.thorough],
        ),
    ],
)
def test_there_is_hardly_ever_an_alarm_without_a_leak(seeds: range) -> None:
    alarms = 0
    for seed in seeds:
        choose = random.Random(seed)
        alarms += bool(simulated(choose, any_length(choose), any_situations(choose)))
    assert alarms <= len(seeds) / RUNS_PER_ALARM


def found_among_others(seed: int, steps: int, leaking: Situation) -> GrowingMemory:
    choose = random.Random(seed)
    every = [("leak", leaking), *any_situations(choose)]
    [found] = [one for one in simulated(choose, steps, every) if one.owner == "leak"]
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("numbers", [256, 10_000, 250_000], ids=["1 KB", "40", "1 MB"])
def test_what_is_kept_of_each_step_is_found_after_twelve(
    seed: int, numbers: int
) -> None:
    since = 2 + seed
    found = found_among_others(seed, since + 11, leak(since, numbers=numbers))
    assert found.since_step == since
    assert found.bytes_per_step == NUMBER * numbers
    assert found.bytes == 12 * NUMBER * numbers


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("share", [1, 0.8], ids=["each step", "8 of 10 steps"])
def test_a_leak_of_a_long_run_is_found_when_it_has_lasted_for_as_long(
    seed: int, share: float
) -> None:
    since = 40 + 10 * seed
    steps = 2 * since + 50
    apart = steps / 24  # readings are not further apart than that
    found = found_among_others(seed, steps, leak(since, share))
    assert 0 <= found.since_step - since <= 2 * apart
    of_run = found.bytes / (steps - since)
    assert found.bytes_per_step == pytest.approx(of_run, rel=0.3)


def test_what_is_kept_in_one_of_many_steps_is_found_in_a_long_run() -> None:
    leaking = leak(11, every=10, numbers=10_000)
    found = found_among_others(0, 400, leaking)
    assert found.bytes_per_step == pytest.approx(NUMBER * 1000, rel=0.1)
    assert not simulated(random.Random(0), 100, [("leak", leaking)])


def test_what_is_too_small_or_too_short_is_no_leak() -> None:
    def found(leaking: Situation) -> bool:
        return bool(simulated(random.Random(0), 30, [("leak", leaking)]))

    assert found(leak(1, numbers=256))
    assert not found(leak(1, numbers=255))
    assert found(leak(19))
    assert not found(leak(20))


@pytest.mark.parametrize("steps", [10, 48, 49, 1000])
def test_few_steps_of_a_long_run_are_read(steps: int) -> None:
    growth, read = Growth(), list[int]()

    def reading(number: int) -> Counter[Holder]:
        read.append(number)
        return Counter()

    for number in range(1, steps + 1):
        growth.step_ended(number, partial(reading, number))
    assert read[:48] == [*range(1, min(steps, 48) + 1)]
    if steps == 1000:
        assert read[-3:] == [929, 961, 993]
        assert len(read) == 49 + 4 * 24 + 7


# In training

ROWS: Final = 100
SINCE, STEPS = 5, 24


class Net(nn.Module):
    """What ReLU returns is kept for backward."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(64, 32, bias=False)
        self.relu = nn.ReLU()
        self.b = nn.Linear(32, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.b(self.relu(self.a(x)))
        return out


A, B = 64 * 32 * NUMBER, 32 * 16 * NUMBER
BATCH, HIDDEN, OUT = (ROWS * width * NUMBER for width in (64, 32, 16))
X = torch.ones(ROWS, 64)

#: What a program does in each step, with its model, the output, what it has kept so
#: far, and the number of the step.
Habit = Callable[[Net, torch.Tensor, list[Any], int], object]
Make = Callable[..., Any]


def train(
    habit: Habit,
    make: Make = torch.optim.Adam,
    steps: int = STEPS,
    rows: Callable[[int], int] = lambda number: ROWS,
    **options: Any,
) -> Profile:
    net, kept = Net(), list[Any]()
    optimizer = make(net.parameters())
    with profile(memory="cpu", **options) as prof:
        for number in range(1, steps + 1):
            net.zero_grad()
            out = net(torch.ones(rows(number), 64))
            out.sum().backward(retain_graph=True)
            habit(net, out, kept, number)
            optimizer.step()
    return prof.profile


def growing(found: Profile) -> dict[tuple[str, str, str], GrowingMemory]:
    assert found.memory is not None
    return {(one.owner, one.phase, one.kind): one for one in found.memory.growing}


def remembers(net: Net, *_: Any) -> None:
    """A cache in a module, which is made anew in each step, with more in it."""
    before = getattr(net.relu, "cache", torch.empty(0, 64))
    net.relu.cache = torch.cat([before, X])


def looks(net: Net, out: torch.Tensor, kept: list[Any], number: int) -> None:
    """From the next step on."""
    if number == SINCE:
        net.relu.register_forward_hook(lambda *args: kept.append(args[2].detach()))


def since(habit: Habit) -> Habit:
    return lambda *about: about[3] < SINCE or habit(*about)


OF_RELU = "Net.relu", "forward", "activation"
OF_B = "Net.b", "forward", "activation"
#: What is made before forward; as a function, that is a part of it.
OTHERS = "(outside modules)", "outside", "other"
ACTIVATIONS = "(outside modules)", "outside", "activation"


@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize(
    ("habit", "expected"),
    [
        (
            lambda net, out, kept, _: kept.append(net(X).mean()),
            {OF_RELU: HIDDEN},
        ),
        (
            lambda net, out, kept, _: kept.append(out),
            {OF_RELU: HIDDEN, OF_B: OUT, OTHERS: BATCH},
        ),
        (lambda net, out, kept, _: kept.append(out.detach()), {OF_B: OUT}),
        (
            lambda net, out, kept, _: kept.append([p.grad for p in net.parameters()]),
            {
                ("Net.a", "backward", "gradient"): A,
                ("Net.b", "backward", "gradient"): B,
            },
        ),
        (lambda net, out, kept, _: kept.append(torch.ones(1000)), {OTHERS: 4000}),
        (remembers, {OTHERS: BATCH}),
    ],
    ids=["losses", "graphs", "outputs", "gradients", "batches", "a cache"],
)
def test_what_is_kept_of_each_step_is_told(
    habit: Habit, expected: dict[tuple[str, str, str], int], functions: bool
) -> None:
    found = growing(train(since(habit), functions=functions))
    kept = {owner: one.bytes_per_step for owner, one in found.items()}
    for one in found.values():
        # What is kept would be there at the end of its step, anyway.
        assert one.since_step in (SINCE, SINCE + 1)
        assert one.bytes >= (STEPS - SINCE) * one.bytes_per_step
    if functions and ACTIVATIONS in kept:
        kept[OTHERS] = kept.pop(ACTIVATIONS)
    assert kept == expected


def test_what_is_kept_in_a_forward_is_the_modules() -> None:
    [(owner, found)] = growing(train(looks)).items()
    assert owner == OF_RELU
    assert found.bytes_per_step == HIDDEN
    # From the step after on; the first result would be there at its end, anyway.
    assert found.since_step in (SINCE + 1, SINCE + 2)


def test_what_an_evaluation_collects_is_no_leak() -> None:
    """There are no training steps."""
    net = Net()
    with profile(memory="cpu") as prof, torch.no_grad():
        kept = [net(X) for _ in range(50)]
    assert not growing(prof.profile)
    del kept


def test_runs_with_the_same_leak_have_one_leak() -> None:
    leaking = since(lambda net, out, kept, _: kept.append(out.detach()))
    one, other = train(leaking), train(leaking, steps=2 * STEPS)
    assert growing(one.merge(other)).keys() == {OF_B}
    assert growing(one.merge(other)) == growing(other.merge(one))
    assert growing(one.merge(train(lambda *_: None))) == growing(one)


def is_cleared(net: Net, out: torch.Tensor, kept: list[Any], number: int) -> None:
    if number % 25 == 0:
        kept.clear()
    kept.append(out.detach())


def averages(net: Net, out: torch.Tensor, kept: list[Any], number: int) -> None:
    """A copy of the model follows it, and others are kept for a while."""
    kept[:] = [*kept[-2:], copy.deepcopy(net)]


def evaluates(net: Net, out: torch.Tensor, kept: list[Any], number: int) -> None:
    if number % 5 == 0:
        with torch.no_grad():
            kept[:] = [net(X) for _ in range(4)]


@pytest.mark.parametrize(
    "habit",
    [
        lambda net, out, kept, _: kept.append(out.detach().mean()),
        lambda net, out, kept, number: number > 50 or kept.append(out.detach()),
        is_cleared,
        averages,
        evaluates,
    ],
    ids=["losses", "a cache that fills", "is cleared", "averages", "evaluates"],
)
@pytest.mark.parametrize(
    "make",
    [
        torch.optim.Adam,
        pytest.param(lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), marks=THOROUGH),
    ],
    ids=["Adam", "momentum"],
)
@pytest.mark.parametrize(
    "varies", [pytest.param(False, marks=THOROUGH), True], ids=["one length", "lengths"]
)
def test_what_does_not_grow_for_good_is_not_told(
    habit: Habit, make: Make, varies: bool
) -> None:
    choose = random.Random(0)
    lengths = [choose.randint(1, ROWS) if varies else ROWS for _ in range(121)]
    assert not growing(train(habit, make, 120, lengths.__getitem__))


def test_first_steps_are_no_growth() -> None:
    """Whenever somebody looks."""
    for steps in range(1, 20):
        assert not growing(train(lambda *_: None, steps=steps))
