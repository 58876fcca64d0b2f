"""What is counted as a step: the same in `profile()`, within a budget, and in whole
programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.cost.budgeted import (
    THIRDS,
    Limited,
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
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import AFTER_BACKWARD_NAME, OUTSIDE_NAME

#: Counts the steps of what is done inside, which have to be so many; yields what then
#: has the profile.
Follow = Callable[..., AbstractContextManager[Any]]

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture(params=["all", "functions", "budget", "program"])
def follow(request: pytest.FixtureRequest, limited: Limited) -> Follow:
    prof = {
        "all": profile,
        "functions": lambda: profile(functions=True),
        "budget": lambda: limited(*THIRDS),
        "program": lambda: limited(bare(), measured(), functions=True),
    }[request.param]()

    @contextmanager
    def counted(
        steps: int,
        later: Sequence[tuple[int, float]] | None = None,
        first: float | None = None,
        evaluations: int = 0,
        evaluation: float | None = None,
    ) -> Iterator[SimpleNamespace]:
        """later: of the steps but the first, how many take which milliseconds.
        evaluation: the milliseconds of all evaluation calls together."""
        seen = SimpleNamespace()
        with prof:
            yield seen
            seen.found = found = prof.profile
        times = found.step_times
        assert (times.steps, times.evaluations) == (found.steps, evaluations)
        assert found.steps == steps
        if later is not None:
            assert durations(found) == list(later)
        if first is not None:
            assert times.first_ns == first * MS
        if evaluation is not None:
            assert times.evaluation_ns == evaluation * MS
        check_sums(found)

    return counted


def durations(found: ProfileData) -> list[tuple[int, float]]:
    """Of steps but the first: how many of which milliseconds."""
    return [(b.steps, b.total_ns / b.steps / MS) for b in found.step_times.later]


class Trained(Work):
    """Has an optimizer."""

    def __init__(self, forward_ms: float, backward_ms: float) -> None:
        super().__init__(forward_ms, backward_ms)
        self.optimizer = sgd(self)

    def train_steps(self, steps: int, batches: int = 1) -> None:
        """Each step takes 1 ms besides its batches."""
        for _ in range(steps):
            backward(self, batches)
            burn(1)
            self.optimizer.step()


def backward(work: Work, times: int) -> None:
    for _ in range(times):
        work(torch.ones(2)).sum().backward()


@torch.no_grad()
def evaluate(work: nn.Module, times: int) -> None:
    for _ in range(times):
        work(torch.ones(2))


# With an optimizer


@pytest.mark.parametrize("in_function", [False, True])
def test_training_steps_take_as_long_as_they_do(
    follow: Follow, in_function: bool
) -> None:
    work = Trained(4, 6)
    epoch = profile_function(work.train_steps) if in_function else work.train_steps
    with follow(20, first=111, later=[(19, 11)]):
        burn(100)
        for _ in range(4):
            epoch(5)


@pytest.mark.parametrize("batches", [40, pytest.param(100, marks=THOROUGH)])
def test_gradients_accumulated_over_many_batches(follow: Follow, batches: int) -> None:
    work = Trained(1, 2)
    with follow(7, later=[(6, 3 * batches + 1)]) as seen:
        work.train_steps(7, batches)
    assert calls(seen.found, "Trained", "backward") == 7 * batches


@pytest.mark.parametrize(
    ("epochs", "steps", "count"),
    [(3, 5, 25), (1, 20, 400)],
    ids=["between training steps", "long, after them"],
)
def test_evaluations_take_no_part_in_steps(
    follow: Follow, epochs: int, steps: int, count: int
) -> None:
    work = Trained(4, 6)
    total, each = epochs * steps, epochs * count
    times = {"later": [(total - 1, 11)], "evaluation": each * 4}
    with follow(total, **times, evaluations=each) as seen:
        for _ in range(epochs):
            work.train_steps(steps)
            evaluate(work, count)
    assert calls(seen.found, "Trained", "forward") == total + each


@pytest.mark.parametrize("trained_first", [False, True])
def test_the_start_up_is_apart_from_evaluation_calls(
    follow: Follow, trained_first: bool
) -> None:
    work = Trained(1, 2)
    start_up = 3000 * (not trained_first)
    with follow(20 + trained_first, evaluations=30, evaluation=start_up + 30) as seen:
        burn(3000)
        work.train_steps(int(trained_first))
        evaluate(work, 10)
        work.train_steps(20)
        evaluate(work, 20)
    times = seen.found.step_times
    assert times.evaluation_mean_ns == 1 * MS
    assert times.first_evaluations == (not trained_first)


class Generator(nn.Linear):
    forward = torch.no_grad()(nn.Linear.forward)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_calls_without_gradients_though_they_are_enabled(
    follow: Follow, is_frozen: bool
) -> None:
    model = nn.Linear(4, 4).requires_grad_(False) if is_frozen else Generator(4, 4)
    with follow(0, evaluations=10):
        for _ in range(10):
            model(X)


def test_a_teacher_in_the_middle_of_a_step_is_a_part_of_it(follow: Follow) -> None:
    student, teacher = Trained(4, 6), Work(2, 0)
    with follow(8, later=[(7, 12)]):
        for _ in range(8):
            y = student(torch.ones(2))
            evaluate(teacher, 1)
            y.sum().backward()
            student.optimizer.step()


@pytest.mark.parametrize("episode", [100, pytest.param(300, marks=THOROUGH)])
def test_many_calls_before_one_backward(follow: Follow, episode: int) -> None:
    policy = Trained(1, 2)
    with follow(7, later=[(6, 3 * episode)]) as seen:
        for _ in range(7):
            kept = [policy(torch.ones(2)) for _ in range(episode)]
            torch.stack(kept).sum().backward()
            policy.optimizer.step()
    rows = {row.name: row.phases for row in seen.found.rows()}
    of_works = rows["Trained"]["backward"]  # in steps in which modules were looked into
    assert of_works.calls >= episode
    assert of_works.calls % episode == 0
    assert of_works.self_ns == 2 * MS * of_works.calls


def test_an_optimizer_without_modules(follow: Follow) -> None:
    x = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([x], 0.1)
    with follow(20, later=[(19, 10)]):
        for _ in range(20):
            for _ in range(3):
                burn(3)
                x.sin().sum().backward()
            burn(1)
            optimizer.step()


def test_an_evaluation_that_forgot_no_grad() -> None:
    work = Trained(1, 2)
    with profile() as prof:
        work.train_steps(3)
        for _ in range(1500):
            work(torch.ones(2))
        work.train_steps(3)
    times = prof.profile.step_times
    assert prof.profile.steps == times.steps == 6
    assert 1000 <= times.evaluations <= 1500
    assert times.evaluation_ns == times.evaluations * MS
    assert durations(prof.profile)[0] == (4, 4)


def test_time_between_blocks_is_in_no_step() -> None:
    work = Trained(1, 2)
    prof = profile()
    for _ in range(5):
        with prof:
            work.train_steps(1)
            burn(3)
        burn(50)
        work.train_steps(1)
    assert prof.profile.step_times.first_ns == 4 * MS
    assert durations(prof.profile) == [(4, 7)]


# With several optimizers


def test_optimizers_that_share_a_step(follow: Follow) -> None:
    critic, generator = Trained(1, 1), Trained(2, 2)
    # The first step of the critic alone, which nobody could know to be a part of one.
    with follow(9, first=8, later=[(8, 8)], evaluations=9) as seen:
        for _ in range(9):
            critic.train_steps(1)
            generator.train_steps(1)
            evaluate(generator, 1)
    for name, each in {"Trained": 9, "Trained#2": 2 * 9}.items():
        assert calls(seen.found, name, "forward") == each


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


@pytest.mark.parametrize(
    ("count", "in_function"),
    [(62, False), (62, True), pytest.param(300, False, marks=THOROUGH)],
)
def test_optimizers_that_step_inside_of_backward(
    follow: Follow, count: int, in_function: bool
) -> None:
    many = Many(count)
    epoch = profile_function(many.train_steps) if in_function else many.train_steps
    with follow(12, first=5, later=[(11, 5)]) as seen:
        epoch(4)
        epoch(8)
    assert in_function or calls(seen.found, "Many") == 12


@pytest.mark.slow
def test_optimizers_inside_of_backward_that_come_and_go(follow: Follow) -> None:
    """Layers are frozen, and not any more."""
    many = Many(62)
    with follow(80) as seen:
        for resting in (20, 0, 40, 0):
            many.resting = resting
            many.train_steps(20)
    assert seen.found.step_times.later_ns == 79 * 5 * MS


def test_an_optimizer_after_those_inside_of_backward(follow: Follow) -> None:
    many, work = Many(62), Trained(1, 2)
    with follow(12, later=[(11, 10)]):
        for _ in range(12):
            (many().sum() + work(torch.ones(2)).sum()).backward()
            burn(3)
            work.optimizer.step()


class Inner(torch.optim.Optimizer):
    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> Any:
        burn(4)


class Outer(Inner):
    """Has another optimizer do a part of its work, as ZeroRedundancyOptimizer does."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters)
        self.inner = Inner(parameters)

    def step(self, closure: Any = None) -> Any:
        burn(3)
        self.inner.step()
        burn(2)


def test_an_optimizer_that_calls_another_one(follow: Follow) -> None:
    work = Work(1, 2)
    optimizer = Outer(list(work.parameters()))
    with follow(8, later=[(7, 12)]) as seen:
        for _ in range(8):
            backward(work, 1)
            optimizer.step()
    rows = {row.name: row for row in seen.found.rows() if row.kind == "optimizer"}
    outer, inner = rows["(optimizer) Outer"], rows["(optimizer) Inner"]
    assert outer.calls == inner.calls > 0
    assert outer.phases["optimizer"].self_ns == 5 * MS * outer.calls
    assert inner.phases["optimizer"].self_ns == 4 * MS * inner.calls


# Without one of torch's


@pytest.mark.usefixtures("no_optimizer")
def test_optimizers_that_are_not_of_torch(follow: Follow) -> None:
    work = Work(4, 6)
    # The data of the next step is prepared before its forward begins.
    with follow(64, first=1 + 4 + 6 + 5 + 1) as seen:
        for _ in range(64):
            burn(1)
            backward(work, 1)
            burn(5)  # updates parameters
    assert durations(seen.found)[-1] == (62, 16)
    rows = {row.name: row for row in seen.found.rows()}
    after = rows[AFTER_BACKWARD_NAME]
    after_ns = after.phases["outside"].self_ns
    assert (after.kind, after.self_ns) == ("outside", after_ns)
    assert after_ns % (6 * MS) == 0 < after_ns
    assert rows[OUTSIDE_NAME].self_ns <= 1 * MS + 6 * MS


@pytest.mark.usefixtures("no_optimizer")
def test_neither_modules_nor_optimizers(follow: Follow) -> None:
    """Nothing but backward passes shows steps."""
    x = torch.ones(4, requires_grad=True)
    with follow(50, first=3, later=[(49, 5)]):
        for _ in range(50):
            burn(3)
            (x.sin() * 2).sum().backward()
            burn(2)


@pytest.mark.usefixtures("no_optimizer")
def test_a_pass_before_the_first_forward(follow: Follow) -> None:
    work = Work(4, 6)
    with follow(21, later=[(20, 16)]):
        torch.ones(4, requires_grad=True).sum().backward()
        for _ in range(20):
            y = work(torch.ones(2))
            y.sum().backward(retain_graph=True)
            y.mean().backward()


class Forces(nn.Module):
    """Its forward has a backward pass inside."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = Work(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        energy = self.energy(x).sum()
        (forces,) = torch.autograd.grad(energy, x, create_graph=True)
        return forces


@pytest.mark.usefixtures("no_optimizer")
def test_passes_inside_of_calls_and_outside(follow: Follow) -> None:
    model = Forces()
    with follow(20 + 1):  # what comes after the last call seems to be a step
        for _ in range(20):
            model(torch.ones(2, requires_grad=True)).sum().backward()


@pytest.mark.usefixtures("no_optimizer")
def test_evaluations_without_optimizers(follow: Follow) -> None:
    work = Work(4, 6)
    with follow(20, evaluations=15, evaluation=15 * 4) as seen:
        for _ in range(5):
            backward(work, 4)
            evaluate(work, 3)
    assert calls(seen.found, "Work", "backward") == 20


def test_an_optimizer_that_was_made_and_never_steps(follow: Follow) -> None:
    work = Trained(4, 6)
    with follow(200):
        backward(work, 200)


def test_passes_after_the_optimizer_is_out_of_use() -> None:
    work = Trained(1, 1)
    with profile() as prof:
        work.train_steps(5)
        backward(work, 1500)
    times = prof.profile.step_times
    assert times.steps == 1505
    assert times.later_ns == (4 * 3 + 1500 * 2) * MS
