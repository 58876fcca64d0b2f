"""What is counted as a step: the same in `profile()`, within a budget, and in whole
programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.budgeted import (
    THIRDS,
    Limited,
    Net,
    X,
    bare,
    calls,
    check_sums,
    measured,
    sgd,
)
from tests.fake_clock import MS, burn
from tests.planted import Work
from tests.thorough import THOROUGH
from torchprof_hooks import profile, profile_function
from torchprof_hooks.capture import steps as step_rules
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import AFTER_BACKWARD_NAME, OUTSIDE_NAME
from torchprof_hooks.profiles.step_times import StepTimes

#: Enters something that counts steps; gives what tells the profile of all so far.
Follow = Callable[[], Any]
Read = Callable[[], ProfileData]

pytestmark = pytest.mark.usefixtures("clock")


@contextmanager
def _all_steps() -> Iterator[Read]:
    with profile() as prof:
        yield lambda: prof.profile


@contextmanager
def _all_functions() -> Iterator[Read]:
    with profile(functions=True) as prof:
        yield lambda: prof.profile


@pytest.fixture(params=["all", "functions", "budget", "program"])
def follow(request: pytest.FixtureRequest, limited: Limited) -> Follow:
    @contextmanager
    def budget() -> Iterator[Read]:
        with limited(*THIRDS) as prof:
            yield lambda: prof.profile

    @contextmanager
    def program() -> Iterator[Read]:
        plans = (bare(), measured())
        with limited(*plans, functions=True) as prof:
            yield lambda: prof.profile

    ways = {
        "all": _all_steps,
        "functions": _all_functions,
        "budget": budget,
        "program": program,
    }
    return ways[request.param]


@pytest.fixture
def without_optimizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """None was made yet in this process."""
    monkeypatch.setattr(step_rules, "any_optimizer_made", lambda: False)


def all_steps(found: ProfileData) -> int:
    assert found.steps == found.step_times.steps
    return found.step_times.steps


def durations(times: StepTimes) -> list[tuple[int, float]]:
    """Of steps but the first: how many of which milliseconds."""
    return [(b.steps, b.total_ns / b.steps / MS) for b in times.later]


def train(work: Work, optimizer: Any, steps: int, batches: int = 1) -> None:
    for _ in range(steps):
        for _ in range(batches):
            work(torch.ones(2)).sum().backward()
        burn(1)
        optimizer.step()


def evaluate(work: Work, count: int) -> None:
    for _ in range(count):
        with torch.no_grad():
            work(torch.ones(2))


def test_training_steps_take_as_long_as_they_do(follow: Follow) -> None:
    work = Work(4, 6)
    optimizer = sgd(work)
    with follow() as read:
        burn(100)
        train(work, optimizer, 20)
        times = read().step_times
    assert times.first_ns == 111 * MS
    assert durations(times) == [(19, 11)]


@pytest.mark.parametrize("batches", [40, pytest.param(100, marks=THOROUGH)])
def test_gradients_accumulated_over_many_batches(follow: Follow, batches: int) -> None:
    work = Work(1, 2)
    optimizer = sgd(work)
    with follow() as read:
        train(work, optimizer, 7, batches)
        found = read()
    assert all_steps(found) == 7
    assert durations(found.step_times) == [(6, 3 * batches + 1)]
    assert not found.step_times.evaluations


def test_an_evaluation_between_training_steps(follow: Follow) -> None:
    work = Work(4, 6)
    optimizer = sgd(work)
    with follow() as read:
        for _ in range(3):
            train(work, optimizer, 10)
            evaluate(work, 25)
        train(work, optimizer, 2)
        found = read()
    times = found.step_times
    assert all_steps(found) == 32
    assert durations(times) == [(31, 11)]
    assert (times.evaluations, times.evaluation_ns) == (75, 75 * 4 * MS)


def test_generation_after_training(follow: Follow) -> None:
    work = Work(1, 2)
    optimizer = sgd(work)
    with follow() as read:
        train(work, optimizer, 120)
        evaluate(work, 400)
        found = read()
    assert all_steps(found) == 120
    assert durations(found.step_times) == [(119, 4)]
    assert found.step_times.evaluations == 400
    assert found.step_times.evaluation_mean_ns == 1 * MS


@pytest.mark.parametrize("trained_first", [False, True])
def test_the_start_up_is_apart_from_evaluation_calls(
    follow: Follow, trained_first: bool
) -> None:
    work = Work(1, 2)
    optimizer = sgd(work)
    with follow() as read:
        burn(3000)
        train(work, optimizer, trained_first)
        evaluate(work, 10)
        train(work, optimizer, 20)
        evaluate(work, 20)
        found = read()
    times = found.step_times
    assert times.evaluation_mean_ns == 1 * MS
    start_up_ms = 3000 * (not trained_first)
    assert (times.evaluations, times.evaluation_ns) == (30, (start_up_ms + 30) * MS)
    assert times.first_evaluations == (not trained_first)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y


@pytest.mark.parametrize("is_frozen", [False, True])
def test_calls_without_gradients_though_they_are_enabled(
    follow: Follow, is_frozen: bool
) -> None:
    model = nn.Linear(4, 4).requires_grad_(False) if is_frozen else Generator()
    with follow() as read:
        for _ in range(10):
            model(X)
        assert read().step_times.evaluations == 10
        assert not all_steps(read())


def test_a_teacher_in_the_middle_of_a_step_is_a_part_of_it(follow: Follow) -> None:
    student, teacher = Work(4, 6), Work(2, 0)
    optimizer = sgd(student)
    with follow() as read:
        for _ in range(8):
            y = student(torch.ones(2))
            evaluate(teacher, 1)
            y.sum().backward()
            optimizer.step()
        found = read()
    assert durations(found.step_times) == [(7, 12)]
    assert not found.step_times.evaluations


@pytest.mark.parametrize("episode", [100, pytest.param(300, marks=THOROUGH)])
def test_many_calls_before_one_backward(follow: Follow, episode: int) -> None:
    policy = Work(1, 2)
    optimizer = sgd(policy)
    with follow() as read:
        for _ in range(7):
            kept = [policy(torch.ones(2)) for _ in range(episode)]
            torch.stack(kept).sum().backward()
            optimizer.step()
        found = read()
    assert all_steps(found) == 7
    assert durations(found.step_times) == [(6, 3 * episode)]
    rows = {row.name: row.phases for row in found.rows()}
    of_works = rows["Work"]["backward"]  # in steps in which modules were looked into
    assert of_works.calls >= episode
    assert of_works.calls % episode == 0
    assert of_works.self_ns == 2 * MS * of_works.calls


def test_optimizers_that_share_a_step(follow: Follow) -> None:
    critic, generator = Work(1, 1), Work(2, 2)
    optimizers = sgd(critic), sgd(generator)
    with follow() as read:
        for _ in range(9):
            for work, optimizer in zip((critic, generator), optimizers, strict=True):
                train(work, optimizer, 1)
            evaluate(generator, 1)
        found = read()
    # The first step of the critic alone, which nobody could know to be a part of one.
    assert all_steps(found) == 9
    assert durations(found.step_times) == [(8, 8)]
    assert found.step_times.first_ns == 8 * MS
    assert found.step_times.evaluations == 9


class Many(nn.Module):
    """Each parameter has an optimizer that steps inside of the backward pass; those of
    `resting` are not used."""

    def __init__(self, count: int) -> None:
        super().__init__()
        made = (nn.Parameter(torch.ones(1)) for _ in range(count))
        self.each = nn.ParameterList(made)
        self.resting = 0
        for parameter in self.each:
            optimizer = torch.optim.SGD([parameter], 0.1)
            parameter.register_post_accumulate_grad_hook(
                lambda _, optimizer=optimizer: optimizer.step()
            )

    def forward(self) -> torch.Tensor:
        burn(4)
        return torch.cat(list(self.each)[self.resting :])

    def train_steps(self, steps: int) -> None:
        for _ in range(steps):
            burn(1)
            self().sum().backward()


@pytest.mark.parametrize("count", [62, 161, pytest.param(300, marks=THOROUGH)])
def test_optimizers_that_step_inside_of_backward(follow: Follow, count: int) -> None:
    many = Many(count)
    with follow() as read:
        many.train_steps(12)
        found = read()
    assert all_steps(found) == 12
    assert found.step_times.first_ns == 5 * MS
    assert durations(found.step_times) == [(11, 5)]
    assert not found.step_times.evaluations


@pytest.mark.slow
def test_optimizers_inside_of_backward_that_come_and_go(follow: Follow) -> None:
    """Layers are frozen, and not any more."""
    many = Many(62)
    with follow() as read:
        for resting in (20, 0, 40, 0):
            many.resting = resting
            many.train_steps(20)
        found = read()
    assert all_steps(found) == 80
    assert found.step_times.later_ns == 79 * 5 * MS


def test_an_optimizer_after_those_inside_of_backward(follow: Follow) -> None:
    many, work = Many(62), Work(1, 2)
    optimizer = sgd(work)
    with follow() as read:
        for _ in range(12):
            (many().sum() + work(torch.ones(2)).sum()).backward()
            burn(3)
            optimizer.step()
        found = read()
    assert all_steps(found) == 12
    assert durations(found.step_times) == [(11, 10)]


def test_passes_with_optimizers_inside_of_a_function(follow: Follow) -> None:
    many = Many(62)
    epoch = profile_function(many.train_steps)
    with follow() as read:
        for _ in range(4):
            epoch(5)
        found = read()
    assert all_steps(found) == 20
    assert durations(found.step_times) == [(19, 5)]


class Outer(torch.optim.Optimizer):
    """Has another optimizer do a part of its work, as ZeroRedundancyOptimizer does."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.inner = Inner(parameters)

    def step(self, closure: Any = None) -> Any:
        burn(3)
        self.inner.step()
        burn(2)


class Inner(torch.optim.Optimizer):
    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> Any:
        burn(4)


def test_an_optimizer_that_calls_another_one(follow: Follow) -> None:
    work = Work(1, 2)
    optimizer = Outer(list(work.parameters()))
    with follow() as read:
        for _ in range(8):
            work(torch.ones(2)).sum().backward()
            optimizer.step()
        found = read()
    assert all_steps(found) == 8
    assert durations(found.step_times) == [(7, 12)]
    rows = {row.name: row for row in found.rows() if row.kind == "optimizer"}
    outer, inner = rows["(optimizer) Outer"], rows["(optimizer) Inner"]
    assert outer.calls == inner.calls > 0
    assert outer.phases["optimizer"].self_ns == 5 * MS * outer.calls
    assert inner.phases["optimizer"].self_ns == 4 * MS * inner.calls
    check_sums(found)


class Failing(Inner):
    def step(self, closure: Any = None) -> Any:
        burn(4)
        raise ValueError("planted")


def test_a_nested_step_that_fails() -> None:
    work = Work(1, 2)
    optimizer: Any = Outer(list(work.parameters()))
    optimizer.inner = Failing(list(work.parameters()))
    with profile() as prof:
        for _ in range(3):
            work(torch.ones(2)).sum().backward()
            with pytest.raises(ValueError, match="planted"):
                optimizer.step()
            work(torch.ones(2))
    check_sums(prof.profile)


@pytest.mark.usefixtures("without_optimizers")
def test_optimizers_that_are_not_of_torch(follow: Follow) -> None:
    work = Work(4, 6)

    def update() -> None:
        with torch.no_grad():
            work.scale.mul_(0.99)
        burn(5)

    with follow() as read:
        for _ in range(64):
            burn(1)
            work(torch.ones(2)).sum().backward()
            update()
        found = read()
    assert all_steps(found) == 64
    # The data of the next step is prepared before its forward begins.
    assert found.step_times.first_ns == (1 + 4 + 6 + 5 + 1) * MS
    assert sum(steps for steps, _ in durations(found.step_times)) == 63
    assert durations(found.step_times)[-1] == (62, 16)
    rows = {row.name: row for row in found.rows()}
    after = rows[AFTER_BACKWARD_NAME]
    after_ns = after.phases["outside"].self_ns
    assert (after.kind, after.self_ns) == ("outside", after_ns)
    assert after_ns % (6 * MS) == 0 < after_ns
    assert rows[OUTSIDE_NAME].self_ns <= 1 * MS + 6 * MS
    check_sums(found)


@pytest.mark.usefixtures("without_optimizers")
def test_neither_modules_nor_optimizers(follow: Follow) -> None:
    """Nothing but backward passes shows steps."""
    x = torch.ones(4, requires_grad=True)
    with follow() as read:
        for _ in range(50):
            burn(3)
            (x.sin() * 2).sum().backward()
            burn(2)
        found = read()
    assert all_steps(found) == 50
    assert found.step_times.first_ns == 3 * MS
    assert durations(found.step_times) == [(49, 5)]
    check_sums(found)


@pytest.mark.usefixtures("without_optimizers")
def test_a_pass_before_the_first_forward(follow: Follow) -> None:
    work = Work(4, 6)
    with follow() as read:
        torch.ones(4, requires_grad=True).sum().backward()
        for _ in range(20):
            y = work(torch.ones(2))
            y.sum().backward(retain_graph=True)
            y.mean().backward()
        found = read()
    assert all_steps(found) == 21
    assert durations(found.step_times) == [(20, 16)]


class Forces(nn.Module):
    """Its forward has a backward pass inside."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = Work(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        energy = self.energy(x).sum()
        (forces,) = torch.autograd.grad(energy, x, create_graph=True)
        return forces


@pytest.mark.usefixtures("without_optimizers")
def test_passes_inside_of_calls_and_outside(follow: Follow) -> None:
    model = Forces()
    with follow() as read:
        for _ in range(20):
            model(torch.ones(2, requires_grad=True)).sum().backward()
        found = read()
    assert all_steps(found) == 20 + 1  # what comes after the last call seems to be one


def test_an_optimizer_without_modules(follow: Follow) -> None:
    x = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([x], 0.1)
    with follow() as read:
        for _ in range(20):
            for _ in range(3):
                burn(3)
                x.sin().sum().backward()
            burn(1)
            optimizer.step()
        found = read()
    assert all_steps(found) == 20
    assert found.step_times.first_ns == 10 * MS
    assert durations(found.step_times) == [(19, 10)]


@pytest.mark.usefixtures("without_optimizers")
def test_evaluations_without_optimizers(follow: Follow) -> None:
    work = Work(4, 6)
    with follow() as read:
        for _ in range(5):
            for _ in range(4):
                work(torch.ones(2)).sum().backward()
            evaluate(work, 3)
        found = read()
    assert all_steps(found) == 20
    assert found.step_times.evaluations == 15
    assert found.step_times.evaluation_ns == 15 * 4 * MS


def test_an_optimizer_that_was_made_and_never_steps(follow: Follow) -> None:
    work = Work(4, 6)
    sgd(work)
    with follow() as read:
        for _ in range(200):
            work(torch.ones(2)).sum().backward()
        found = read()
    assert all_steps(found) == 200


def test_passes_after_the_optimizer_is_out_of_use() -> None:
    work = Work(1, 1)
    optimizer = sgd(work)
    with profile() as prof:
        train(work, optimizer, 5)
        for _ in range(1500):
            work(torch.ones(2)).sum().backward()
    times = prof.profile.step_times
    assert times.steps == 1505
    assert times.later_ns == (4 * 3 + 1500 * 2) * MS


def test_an_evaluation_that_forgot_no_grad(follow: Follow) -> None:
    work = Work(1, 2)
    optimizer = sgd(work)
    with follow() as read:
        train(work, optimizer, 30)
        for _ in range(3000):
            work(torch.ones(2))
        train(work, optimizer, 3)
        found = read()
    times = found.step_times
    assert all_steps(found) == 33
    assert 2000 <= times.evaluations <= 3000
    assert times.evaluation_ns == times.evaluations * MS
    assert durations(times)[0] == (31, 4)


def test_steps_in_a_profiled_function(follow: Follow) -> None:
    work = Work(1, 2)
    optimizer = sgd(work)

    @profile_function
    def epoch(steps: int) -> None:
        train(work, optimizer, steps)

    with follow() as read:
        for _ in range(4):
            epoch(5)
        found = read()
    assert all_steps(found) == 20
    assert durations(found.step_times) == [(19, 4)]


def test_time_between_blocks_is_in_no_step() -> None:
    work = Work(1, 2)
    optimizer = sgd(work)
    prof = profile()
    for _ in range(5):
        with prof:
            train(work, optimizer, 1)
            burn(3)
        burn(50)
        train(work, optimizer, 1)
    times = prof.profile.step_times
    assert times.first_ns == 4 * MS
    assert durations(times) == [(4, 7)]


def test_a_real_net(follow: Follow) -> None:
    model = Net()
    optimizer = sgd(model)
    with follow() as read:
        for _ in range(13):
            model(X).sum().backward()
            optimizer.step()
        with torch.no_grad():
            for _ in range(6):
                model(X)
        found = read()
    assert (all_steps(found), found.step_times.evaluations) == (13, 6)
    assert calls(found, "Net") > 0
