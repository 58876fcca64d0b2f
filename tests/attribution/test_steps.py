"""What is counted as a step, by three rules: where all steps are measured, and where
some are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.cost.loops import THIRDS, X, calls, check_sums, sgd
from tests.fake_clock import MS, burn
from tests.helpers import in_thread
from tests.planted import Work
from tests.thorough import THOROUGH
from torchprof_hooks import profile, profile_function, region
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.names import AFTER_BACKWARD_NAME, AFTER_LAST_NAME

#: Counts the steps of what is done inside, which have to be so many; yields what then
#: has the profile.
Follow = Callable[..., AbstractContextManager[Any]]

pytestmark = pytest.mark.usefixtures("clock")


#: Where not all steps are measured, evaluation calls in the others are parts of steps.
FUNCTIONS = pytest.param("functions", marks=THOROUGH)
ALL = pytest.mark.parametrize("follow", ["all", FUNCTIONS], indirect=True)


@pytest.fixture(params=["all", FUNCTIONS, "some"])
def follow(request: pytest.FixtureRequest) -> Follow:
    every: dict[str, dict[str, Any]] = {
        "all": {},
        "functions": {"functions": True},
        "some": THIRDS,
    }
    options = every[request.param]
    prof = profile(**options)

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
        seen = SimpleNamespace(prof=prof, is_whole=options is not THIRDS)
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
    if seen.is_whole:
        assert calls(seen.found, "Trained", "backward") == 7 * batches


@ALL
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


@ALL
@pytest.mark.parametrize("trained_first", [False, True])
def test_the_start_up_is_no_part_of_evaluation_calls(
    follow: Follow, trained_first: bool
) -> None:
    work = Trained(1, 2)
    with follow(20 + trained_first, evaluations=30, evaluation=30) as seen:
        burn(3000)
        work.train_steps(int(trained_first))
        evaluate(work, 10)
        work.train_steps(20)
        evaluate(work, 20)
    times = seen.found.step_times
    assert times.evaluation_mean_ns == 1 * MS
    assert times.first_evaluations == (not trained_first)


class Loss(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        burn(1)
        return x.sum()


@ALL
def test_an_evaluation_is_as_long_as_its_calls(follow: Follow) -> None:
    """Not as what is saved, or loaded, before it."""
    work, loss = Trained(4, 6), Loss()
    with follow(20, later=[(19, 11)], evaluations=6, evaluation=6 * (4 + 2)):
        for _ in range(2):
            work.train_steps(10)
            burn(500)
            for _ in range(3):
                burn(20)
                evaluate(work, 1)
                evaluate(loss, 2)


class Own(nn.Module):
    """Has a method of its own with the name of one of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def parameters(self, recurse: bool = True) -> Any:
        raise NotImplementedError

    def forward(self, x: torch.Tensor) -> Any:
        return self.inner(x)


@pytest.mark.parametrize("make", [Own, nn.ReLU, lambda: nn.Linear(2, 2)])
def test_evaluations_of(follow: Follow, make: Callable[[], nn.Module]) -> None:
    """A model of any kind, by itself or in a region, in which it may be made."""
    model = make()
    with follow(0, evaluations=15):
        evaluate(model, 5)
        for _ in range(5):
            with region("kept"):
                evaluate(model, 1)
        for _ in range(5):
            with region("made"):
                evaluate(make(), 1)


@ALL
def test_a_region_without_calls_of_models_is_no_evaluation(follow: Follow) -> None:
    work = Trained(4, 6)
    with follow(20, later=[(19, 13)], evaluations=4, evaluation=4 * 4):
        for number in range(20):
            with region("batch"), region("augmentation"):
                burn(2)
            work.train_steps(1)
            if number in {9, 19}:
                evaluate(work, 1)
                with torch.no_grad(), region("validation"):
                    evaluate(work, 1)


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


def test_optimizers_that_take_turns_share_a_step(follow: Follow) -> None:
    critic, generator = Trained(1, 1), Trained(2, 2)
    with follow(9) as seen:
        for _ in range(9):
            critic.train_steps(1)
            generator.train_steps(1)
    if seen.is_whole:
        assert seen.found.step_times.first_ns == 8 * MS
        assert durations(seen.found) == [(8, 8)]


def adversarial(prof: Any) -> None:
    """Eight rounds, of 20 ms."""
    critic, generator = Trained(1, 1), Trained(2, 2)
    for _ in range(8):
        critic.train_steps(5)
        generator.train_steps(1)
        if prof is not None:
            prof.step()


def test_a_critic_that_steps_five_times_makes_five_steps(follow: Follow) -> None:
    with follow(5 * 8, first=3) as seen:
        adversarial(None)
    if seen.is_whole:
        assert seen.found.step_times.steps_ns == 8 * 20 * MS
        assert durations(seen.found) == [(4 * 8 - 1, 3), (8, 3 + 5)]


def test_one_where_the_program_says_so(follow: Follow) -> None:
    """From the first time on: what came before are steps by the other rules."""
    with follow(5 + 7, first=3, later=[(3, 3), (1, 8), (7, 20)]) as seen:
        adversarial(seen.prof)


@pytest.mark.parametrize("pauses", [0, 1], ids=["the first", "the second"])
def test_two_optimizers_of_which_one_pauses(follow: Follow, pauses: int) -> None:
    works = Trained(1, 1), Trained(2, 2)
    with follow(12) as seen:
        for number in range(12):
            for place, work in enumerate(works):
                if place != pauses or number % 3 == 0:
                    work.train_steps(1)
    assert seen.found.step_times.steps == 12


def test_an_optimizer_that_takes_the_place_of_another_one(follow: Follow) -> None:
    """The other one is gone, so they share no step."""
    work = Work(1, 2)
    with follow(12, first=3, later=[(11, 3)]):
        for _ in range(3):
            optimizer = sgd(work)
            for _ in range(4):
                backward(work, 1)
                optimizer.step()


def test_a_step_that_a_scaler_skips_goes_on(follow: Follow) -> None:
    work = Trained(1, 2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with follow(5, later=[(3, 3), (1, 6)]):
        for factor in (1.0, 1.0, torch.inf, 1.0, 1.0, 1.0):
            work.optimizer.zero_grad()
            scaler.scale(work(torch.ones(2)).sum() * factor).backward()
            scaler.step(work.optimizer)
            scaler.update()


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
    if seen.is_whole and not in_function:
        assert calls(seen.found, "Many") == 12


def test_an_optimizer_after_those_inside_of_backward(follow: Follow) -> None:
    many, work = Many(62), Trained(1, 2)
    with follow(12) as seen:
        for _ in range(12):
            (many().sum() + work(torch.ones(2)).sum()).backward()
            burn(3)
            work.optimizer.step()
    # A block may end before the first step has gone on.
    expected = [(11, 10)] if seen.is_whole else [(10, 10), (1, 13)]
    assert durations(seen.found) == expected


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
    with follow(64, first=1 + 4 + 6, later=[(63, 5 + 1 + 4 + 6)]) as seen:
        for _ in range(64):
            burn(1)
            backward(work, 1)
            burn(5)  # updates parameters
    if seen.is_whole:
        after = {row.name: row for row in seen.found.rows()}[AFTER_BACKWARD_NAME]
        assert (after.kind, after.self_ns) == ("outside", 63 * 6 * MS)


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
def test_each_pass_is_one_that_is_in_no_other_pass(follow: Follow) -> None:
    model = Forces()
    with follow(2 * 20):
        for _ in range(20):
            model(torch.ones(2, requires_grad=True)).sum().backward()


@pytest.mark.usefixtures("no_optimizer")
def test_a_pass_that_fails_ends_no_step(follow: Follow) -> None:
    with follow(6, later=[(5, 7)]):
        for _ in range(6):
            with pytest.raises(RuntimeError, match="does not require grad"):
                torch.ones(()).backward()
            burn(4)
            torch.ones((), requires_grad=True).sin().backward()
            burn(3)


@ALL
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
    with follow(300, first=10, later=[(299, 10)]):
        backward(work, 300)


def test_passes_wait_for_an_optimizer_that_was_made(follow: Follow) -> None:
    """Until measuring ends: so those whose gradients are accumulated are no steps."""
    work = Trained(4, 6)
    with follow(0) as seen:
        backward(work, 200)
    assert (seen.prof.profile.steps, durations(seen.prof.profile)) == (200, [(199, 10)])


# Calls without a graph


def test_a_teacher_before_its_student_is_a_part_of_the_step(follow: Follow) -> None:
    """But for the first call: nothing is known of other steps yet."""
    student, teacher = Trained(4, 6), Work(2, 0)
    with follow(8, evaluations=1, first=10, later=[(7, 12)]):
        for _ in range(8):
            evaluate(teacher, 1)
            y = student(torch.ones(2))
            y.sum().backward()
            student.optimizer.step()


@ALL
def test_calls_that_no_step_comes_after_are_evaluations(follow: Follow) -> None:
    policy = Trained(1, 2)
    with follow(2, evaluations=2 + 3, evaluation=5):
        for _ in range(2):
            evaluate(policy, 2)
            policy.train_steps(1)
        evaluate(policy, 3)


# Where the program says it


def test_steps_that_nothing_else_shows(follow: Follow) -> None:
    work = Work(4, 6)
    with follow(10, later=[(9, 7)], evaluations=1) as seen:
        for _ in range(10):
            evaluate(work, 1)
            burn(3)
            seen.prof.step()


def test_what_comes_after_the_last_pass_if_no_optimizer_steps() -> None:
    """Though one was made, in an earlier cell, say."""
    work = Trained(forward_ms=1, backward_ms=2)
    with profile() as prof:
        for _ in range(20):
            loss = work(torch.ones(2)).sum()
            burn(7)
            loss.backward()
            burn(3)
        burn(50)
    rows = {row.name: row.self_ns for row in prof.profile.rows()}
    assert rows[AFTER_BACKWARD_NAME] == 19 * 3 * MS
    assert rows[AFTER_LAST_NAME] == 53 * MS


@pytest.mark.parametrize("last_ms", [0, 4, 200])
@pytest.mark.parametrize("in_backward", [False, True])
def test_what_comes_after_the_last_step(last_ms: int, in_backward: bool) -> None:
    """A step takes 5 ms: as much may come between two of them, too."""
    work = Trained(forward_ms=1, backward_ms=2)
    burn_first = [1000]  # so does the first step, which is no usual one
    if in_backward:
        [weight, *_] = work.parameters()
        weight.register_post_accumulate_grad_hook(lambda _: work.optimizer.step())
    with profile() as prof:
        for _ in range(8):
            burn(burn_first.pop() if burn_first else 0)
            backward(work, 1)
            if not in_backward:
                work.optimizer.step()
            burn(2)
        evaluate(work, 1)
        burn(last_ms)
        work(torch.ones(2))  # no step comes of it
    rows = {row.name: row.self_ns for row in prof.profile.rows()}
    after = {AFTER_LAST_NAME: last_ms * MS} if last_ms > 5 else {}
    assert {k: v for k, v in rows.items() if k == AFTER_LAST_NAME} == after
    check_sums(prof.profile)


class Stepping(nn.Module):
    def __init__(self, then: Callable[[], object]) -> None:
        super().__init__()
        self.then = then

    def forward(self) -> None:
        burn(2)
        self.then()
        burn(3)


def test_a_step_that_ends_in_a_call(follow: Follow) -> None:
    with follow(6, first=2, later=[(5, 5)]) as seen:
        model = Stepping(seen.prof.step)
        for _ in range(6):
            model()


def test_it_is_said_in_a_thread_that_is_measured() -> None:
    prof = profile()
    with pytest.raises(RuntimeError, match="must be called in a thread"):
        prof.step()
    with prof, pytest.raises(RuntimeError, match="must be called in a thread"):
        in_thread(prof.step)
