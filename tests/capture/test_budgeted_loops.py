"""Loops of all kinds, of which some steps are measured."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as optimizer_module
from torch.utils.data import DataLoader

from tests.capture.budgeted import (
    STEP_MS,
    THIRDS,
    Limited,
    Net,
    X,
    calls,
    check_sums,
    infer,
    measured,
    registered,
    sgd,
    train,
)
from tests.fake_clock import MS, burn
from tests.helpers import in_thread
from tests.planted import Work
from torchprof_hooks import profile, profile_function
from torchprof_hooks.capture import steps as step_rules
from torchprof_hooks.capture.attach.engine import EnginePatch
from torchprof_hooks.profiler import Profiler

pytestmark = pytest.mark.usefixtures("clock")


# Loops of other kinds


@pytest.fixture
def no_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests may have made one, and then training may be still to come."""
    monkeypatch.setattr(step_rules, "any_optimizer_made", lambda: False)


@pytest.mark.usefixtures("no_optimizer")
def test_inference(limited: Limited) -> None:
    with limited(*THIRDS) as prof:
        infer(Net(), 13)
    found = prof.profile
    assert calls(found, "Net") == calls(found, "Net.first") == 13
    assert (found.steps, found.measured[:2]) == (0, (13, 5))
    assert found.wall_ns == 13 * STEP_MS * MS
    check_sums(found)


@pytest.mark.usefixtures("no_optimizer")
def test_inference_in_a_profiled_function(limited: Limited) -> None:
    model = Net()

    @profile_function
    def serve() -> None:
        burn(3)
        model(X)

    with limited(*THIRDS) as prof, torch.no_grad():
        for _ in range(13):
            serve()
    assert prof.profile.wall_ns == 39 * MS
    assert prof.profile.measured[:2] == (13, 5)
    assert calls(prof.profile, "serve") == calls(prof.profile, "Net.first") == 13


def test_training_in_a_profiled_function(limited: Limited) -> None:
    model = Net()
    optimizer = sgd(model)

    @profile_function
    def train_step() -> None:
        burn(1)
        model(X).sum().backward()
        optimizer.step()

    with limited(*THIRDS) as prof:
        for _ in range(13):
            train_step()
    found = prof.profile
    assert (found.steps, found.measured[:2]) == (13, (13, 5))
    assert calls(found, "train_step") == calls(found, "Net", "backward") == 13
    paths = {path for path, _ in found.cells}
    assert ("train_step", "Net", "Net.first") in paths
    assert ("train_step", "(optimizer) SGD") in paths
    check_sums(found)


def test_gradients_without_an_optimizer(
    limited: Limited, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_rules, "any_optimizer_made", lambda: False)
    model = Net()
    with limited(*THIRDS) as prof:
        for _ in range(13):
            model(X).sum().backward()
    assert prof.profile.steps == 13
    assert prof.profile.measured.measured < 8
    assert calls(prof.profile, "Net") == calls(prof.profile, "Net", "backward") == 13
    check_sums(prof.profile)


def test_training_after_inference(limited: Limited) -> None:
    model = Net()
    with limited(*THIRDS) as prof:
        infer(model, 6)
        train(model, 7)
    assert prof.profile.steps == 7
    assert prof.profile.measured[:2] == (13, 5)
    assert calls(prof.profile, "Net", "forward") == 13
    assert calls(prof.profile, "Net", "backward") == 7


def test_two_optimizers_make_one_step(limited: Limited) -> None:
    generator, critic = Net(), Net()
    optimizers = sgd(generator), sgd(critic)
    with limited(*THIRDS) as prof:
        for _ in range(13):
            for model, optimizer in zip((critic, generator), optimizers, strict=True):
                model(X).sum().backward()
                optimizer.step()
    found = prof.profile
    # As long as one of them alone is known, its steps are those of the program.
    assert found.steps == 13
    assert found.measured.measured == pytest.approx(5, abs=1)
    for name in ("Net", "Net#2"):
        assert calls(found, name, "forward") == 13


def test_an_optimizer_that_calls_a_closure(limited: Limited) -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, lr=0.01)

    def closure() -> float:
        optimizer.zero_grad()
        loss = model(X).square().sum()
        loss.backward()
        evaluations.append(0)
        return float(loss.detach())

    evaluations: list[int] = []
    with limited(*THIRDS) as prof:
        for _ in range(13):
            optimizer.step(closure)
    found = prof.profile
    assert (found.steps, found.measured[:2]) == (13, (13, 5))
    assert calls(found, "Net.first") == calls(found, "Net", "backward")
    assert calls(found, "Net.first") == len(evaluations)
    check_sums(found)


class Trainer(nn.Module):
    """Makes whole steps in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.after = nn.Identity()
        self._optimizer = sgd(self.net)

    def forward(self, x: torch.Tensor) -> None:
        self.net(x).sum().backward()
        self._optimizer.step()
        self.after(x)


def test_an_optimizer_that_steps_inside_of_a_call(limited: Limited) -> None:
    trainer, seen = Trainer(), []
    trainer.after.register_forward_hook(lambda *_: seen.append(registered(trainer)))
    with limited(*THIRDS) as prof:
        for _ in range(13):
            trainer(X)
    found = prof.profile
    assert (found.steps, found.measured[:2]) == (13, (13, 5))
    # The first call is a part of the start-up, and ends in the loop.
    for name in ("Trainer", "Trainer.net.first", "Trainer.after"):
        assert calls(found, name) == pytest.approx(13, abs=2)
    for step in seen[1:3]:
        assert step["these modules"] == {"after": 1}
    assert calls(found, "Trainer.net", "backward") == pytest.approx(13, abs=2)
    check_sums(found)


def test_an_optimizer_that_steps_in_backward(limited: Limited) -> None:
    model = Net()
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], 0.1)
        parameter.register_post_accumulate_grad_hook(
            lambda _, optimizer=optimizer: optimizer.step()
        )
    with limited(*THIRDS) as prof:
        for _ in range(20):
            model(X).sum().backward()
            burn(1)
    found = prof.profile
    assert found.steps == calls(found, "Net.first") == 20
    assert 4 <= found.measured.measured <= 10
    check_sums(found)


def test_gradients_are_accumulated(limited: Limited) -> None:
    model = Net()
    optimizer = sgd(model)
    with limited(*THIRDS) as prof:
        for _ in range(13):
            for _ in range(5):
                model(X).sum().backward()
            optimizer.step()
    assert (prof.profile.steps, calls(prof.profile, "Net.first")) == (13, 65)


def test_batches_belong_to_the_steps_that_use_them(limited: Limited) -> None:
    model = Net()
    optimizer = sgd(model)
    with limited(*THIRDS) as prof:
        for batch in DataLoader(torch.ones(26, 4), batch_size=2):  # type: ignore[arg-type]
            model(batch).sum().backward()
            optimizer.step()
    assert calls(prof.profile, "(data loading)") == 13


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_models(limited: Limited) -> None:
    model = torch.jit.script(Net())
    with limited(*THIRDS) as prof:
        infer(model, 13)
    assert calls(prof.profile, "Net") == 13
    assert not model._forward_pre_hooks


def compilations(
    step: Callable[[Any], object], enter: Profiler | None, in_place: bool
) -> int:
    torch._dynamo.reset()
    compiled: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        compiled.append(graph)
        return graph.forward

    model: Any = Net()
    if in_place:
        model.compile(backend=backend)
    else:
        model = torch.compile(model, backend=backend)
    if enter is None:
        step(model)
    else:
        with enter:
            step(model)
    torch._dynamo.reset()
    return len(compiled)


@pytest.mark.parametrize(
    ("functions", "in_place"), [(False, False), (True, False), (False, True)]
)
@pytest.mark.parametrize("loop", [train, infer])
def test_a_compiled_model_is_compiled_as_often_as_without_us(
    limited: Limited,
    loop: Callable[[nn.Module, int], object],
    functions: bool,
    in_place: bool,
) -> None:
    def run(model: nn.Module) -> None:
        loop(model, 10)

    alone = compilations(run, None, in_place)
    prof = limited(*THIRDS, functions=functions)
    assert compilations(run, prof, in_place) == alone
    assert calls(prof.profile, "Net", "forward") == 10


# Steps that do not end in order


class Fails(nn.Module):
    """Raises an exception when it is told to."""

    error: type[BaseException] | None = None

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.net(x)
        if self.error is not None:
            raise self.error("planted")
        return y


ERRORS = [ValueError, KeyboardInterrupt, GeneratorExit]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("loop", [train, infer])
def test_an_exception_goes_through(
    limited: Limited,
    loop: Callable[[nn.Module, int], object],
    steps: int,
    error: type[BaseException],
) -> None:
    model = Fails()
    prof = limited(*THIRDS)
    before = registered(model)
    with pytest.raises(error, match="planted"), prof:  # noqa: PT012
        loop(model, steps)
        model.error = error
        loop(model, 1)
    assert registered(model) == before
    assert calls(prof.profile, "Fails", "forward") == steps + 1
    assert prof.profile.aborted_calls == 1
    check_sums(prof.profile)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("loop", [train, infer])
def test_a_loop_goes_on_after_exceptions(
    limited: Limited,
    loop: Callable[[nn.Module, int], object],
    error: type[BaseException],
) -> None:
    model = Fails()
    with limited(*THIRDS) as prof:
        for _ in range(13):
            loop(model, 1)
            model.error = error
            with pytest.raises(error, match="planted"):
                loop(model, 1)
            model.error = None
    found = prof.profile
    assert calls(found, "Fails", "forward") == 26
    assert found.aborted_calls == 26 - 13
    assert 0 < found.measured.measured < found.measured.steps
    check_sums(found)


# Ways to enter


def test_entered_again_it_goes_on(limited: Limited) -> None:
    prof, model = limited(*THIRDS), Net()
    for steps in (3, 1, 0, 4, 5):
        with prof:
            train(model, steps)
        train(model, 2)  # not seen at all
    assert (prof.profile.steps, prof.profile.measured[:2]) == (13, (13, 5))
    assert calls(prof.profile, "Net.first") == 13
    check_sums(prof.profile)


@pytest.mark.parametrize("loop", [train, infer])
def test_entered_for_each_step(
    limited: Limited, loop: Callable[[nn.Module, int], object]
) -> None:
    prof, model = limited(*THIRDS), Net()
    for _ in range(13):
        with prof:
            loop(model, 1)
    assert prof.profile.measured[:2] == (13, 5)
    assert calls(prof.profile, "Net.first") == 13
    check_sums(prof.profile)


def test_around_a_function(limited: Limited) -> None:
    prof, model = limited(*THIRDS), Net()

    @prof
    def step() -> None:
        train(model, 1)

    for _ in range(13):
        step()
    assert (prof.profile.steps, calls(prof.profile, "Net.first")) == (13, 13)


def test_nested(limited: Limited) -> None:
    prof, model = limited(*THIRDS), Net()
    with prof:
        train(model, 2)
        with prof, prof:
            train(model, 7)
        train(model, 4)
    assert (prof.profile.steps, prof.profile.measured[:2]) == (13, (13, 5))


def test_next_to_a_profiler_of_all_steps(limited: Limited) -> None:
    some = limited(*THIRDS)
    with profile() as outer, some, profile(functions=True) as inner:
        train(Net(), 13)
    for every in (outer.profile, inner.profile, some.profile):
        assert every.steps == calls(every, "Net.first") == 13
    assert some.profile.measured[:2] == (13, 5)


def test_steps_that_are_all_measured_are_those_of_a_profiler_of_all(
    limited: Limited,
) -> None:
    work = nn.Sequential(Work(1, 2), nn.ReLU(), Work(3, 4))
    optimizer = sgd(work)
    some = limited(measured(), functions=True)
    with profile(functions=True) as every, some:
        for _ in range(6):
            work(torch.ones(2)).sum().backward()
            burn(5)
            optimizer.step()
    assert some.profile.cells == every.profile.cells


@pytest.mark.usefixtures("ticking")  # else a pass takes time by chance
def test_two_threads_have_steps_of_their_own(limited: Limited) -> None:
    prof = limited(*THIRDS)
    barrier = threading.Barrier(2)

    def work() -> None:
        with prof:
            for _ in range(13):
                barrier.wait(timeout=60)
                train(Work(2, 3), 1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = prof.profile
    assert (found.steps, found.measured[:2]) == (26, (26, 10))
    [of_class] = [row for row in found.rows("class") if row.name == "Work"]
    assert of_class.calls == of_class.phases["backward"].calls == 26
    check_sums(found)


def test_steps_in_another_thread_are_not_counted(limited: Limited) -> None:
    model = Net()
    optimizer = sgd(model)
    with limited(*THIRDS) as prof:
        for _ in range(7):
            in_thread(lambda: train(model, 2))
            model(X).sum().backward()
            in_thread(optimizer.step)
            optimizer.step()
    assert (prof.profile.steps, prof.profile.measured[:2]) == (7, (7, 3))


def test_an_interrupt_while_hooks_come_back_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EnginePatch, "put_on", interrupt)
    prof = profile(max_overhead=0.01)
    with pytest.raises(KeyboardInterrupt), prof:
        pass
    assert not torch_module._global_forward_pre_hooks
    assert not torch_module._global_forward_hooks
    assert not optimizer_module._global_optimizer_post_hooks
    monkeypatch.undo()
    with prof:
        nn.Linear(4, 4)(torch.ones(2, 4))
    assert [row.name for row in prof.profile.rows() if row.kind == "module"]
