"""Loops of all kinds, of which some steps are measured."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.cost.budgeted import (
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
from torchprof_hooks import Profile, profile, profile_function
from torchprof_hooks.capture.attach.engine import EnginePatch
from torchprof_hooks.profiler import Profiler

pytestmark = pytest.mark.usefixtures("clock")

Loop = Callable[[nn.Module, int], object]
each_loop = pytest.mark.parametrize("loop", [train, infer])


# Loops of other kinds


def infer_in_a_profiled_function() -> None:
    model = Net()

    @profile_function
    def serve() -> None:
        burn(STEP_MS)
        model(X)

    with torch.no_grad():
        for _ in range(13):
            serve()


def train_in_a_profiled_function() -> None:
    model = Net()
    optimizer = sgd(model)

    @profile_function
    def train_step() -> None:
        model(X).sum().backward()
        optimizer.step()

    for _ in range(13):
        train_step()


def train_after_inference() -> None:
    model = Net()
    infer(model, 6)
    train(model, 7)


def load_batches() -> None:
    model = Net()
    optimizer = sgd(model)
    for batch in DataLoader(torch.ones(26, 4), batch_size=2):  # type: ignore[arg-type]
        burn(STEP_MS)
        model(batch).sum().backward()
        optimizer.step()


def train_with_a_closure() -> None:
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1, lr=0.01)

    def closure() -> float:
        burn(STEP_MS)
        optimizer.zero_grad()
        loss = model(X).square().sum()
        loss.backward()
        return float(loss.detach())

    for _ in range(13):
        optimizer.step(closure)


def infer_scripted() -> None:
    model = torch.jit.script(Net())
    infer(model, 13)
    assert not model._forward_pre_hooks


def again(prof: Profiler) -> None:
    model = Net()
    for steps in (3, 1, 0, 4, 5):
        with prof:
            train(model, steps)
        train(model, 2)  # not seen at all


def for_each_step(prof: Profiler, loop: Loop = train) -> None:
    model = Net()
    for _ in range(13):
        with prof:
            loop(model, 1)


def around_a_function(prof: Profiler) -> None:
    model = Net()
    step = prof(lambda: train(model, 1))
    for _ in range(13):
        step()


def nested(prof: Profiler) -> None:
    model = Net()
    with prof:
        train(model, 2)
        with prof, prof:
            train(model, 7)
        train(model, 4)


def next_to_profilers_of_all_steps(prof: Profiler) -> None:
    model = Net()
    with profile() as outer, prof, profile(functions=True) as inner:
        train(model, 13)
    for every in (outer.profile, inner.profile):
        assert every.steps == calls(every, "Net.first") == 13


def inside(loop: Callable[[], object]) -> Callable[[Profiler], object]:
    def way(prof: Profiler) -> None:
        with prof:
            loop()

    return way


IN_NET = ["Net", "Net > Net.first", "Net > Net.second"]
#: Loops of 13 steps or calls, and ways to measure them: how many are training steps,
#: and the chains of calls of which there are 13.
LOOPS: dict[str, tuple[Callable[[Profiler], object], int, list[str]]] = {
    "training": (inside(lambda: train(Net(), 13)), 13, [*IN_NET, "(optimizer) SGD"]),
    "inference": (inside(lambda: infer(Net(), 13)), 0, IN_NET),
    "inference in a profiled function": (
        inside(infer_in_a_profiled_function),
        0,
        ["serve", "serve > Net > Net.first"],
    ),
    "training after inference": (inside(train_after_inference), 7, IN_NET),
    "batches": (inside(load_batches), 13, ["(data loading)", *IN_NET]),
    "a closure": (inside(train_with_a_closure), 13, [*IN_NET, "(optimizer) LBFGS"]),
    "a scripted model": (inside(infer_scripted), 0, ["Net"]),
    "entered again": (again, 13, IN_NET),
    "entered for each step": (for_each_step, 13, IN_NET),
    "entered for each call": (lambda prof: for_each_step(prof, infer), 0, IN_NET),
    "around a function": (around_a_function, 13, IN_NET),
    "nested": (nested, 13, IN_NET),
    "next to profilers of all steps": (next_to_profilers_of_all_steps, 13, IN_NET),
}


@pytest.mark.usefixtures("no_optimizer")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of scripts
@pytest.mark.parametrize(("way", "steps", "called"), LOOPS.values(), ids=LOOPS)
def test_the_first_step_and_each_third_is_measured(
    way: Callable[[Profiler], object], steps: int, called: list[str], limited: Limited
) -> None:
    prof = limited(*THIRDS)
    way(prof)
    found = prof.profile
    assert (found.steps, found.measured[:2]) == (steps, (13, 5))
    assert found.wall_ns == 13 * STEP_MS * MS
    for chain in called:
        assert chain_calls(found, chain) == 13, chain
    assert calls(found, "Net", "backward") == steps
    check_sums(found)


def chain_calls(found: Profile, chain: str) -> int:
    return sum(
        totals.calls
        for (path, phase), totals in found.cells.items()
        if " > ".join(path) == chain and phase != "backward"
    )


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


def train_in_forward() -> None:
    trainer, seen = Trainer(), []
    trainer.after.register_forward_hook(lambda *_: seen.append(registered(trainer)))
    for _ in range(13):
        trainer(X)
    for step in seen[1:3]:
        assert step["these modules"] == {"after": 1}


@pytest.mark.parametrize(
    ("loop", "outer", "net", "last"),
    [
        (train_in_a_profiled_function, "train_step", "Net", "(optimizer) SGD"),
        (train_in_forward, "Trainer", "Trainer.net", "Trainer.after"),
    ],
)
def test_steps_that_end_inside_of_a_call(
    limited: Limited, loop: Callable[[], object], outer: str, net: str, last: str
) -> None:
    with limited(*THIRDS) as prof:
        loop()
    found = prof.profile
    assert (found.steps, found.measured[:2]) == (13, (13, 5))
    paths = {path for path, _ in found.cells}
    assert paths >= {(outer, net, f"{net}.first"), (outer, last)}
    # The first call is a part of the start-up, and ends in the loop.
    for name in (outer, f"{net}.first", last):
        assert calls(found, name) == pytest.approx(13, abs=2)
    assert calls(found, net, "backward") == pytest.approx(13, abs=2)
    check_sums(found)


def compilations(run: Callable[[Any], object], prof: Any, in_place: bool) -> int:
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
    with prof:
        run(model)
    torch._dynamo.reset()
    return len(compiled)


@pytest.mark.parametrize(
    ("functions", "in_place"), [(False, False), (True, False), (False, True)]
)
@each_loop
def test_a_compiled_model_is_compiled_as_often_as_without_us(
    limited: Limited, loop: Loop, functions: bool, in_place: bool
) -> None:
    def run(model: nn.Module) -> None:
        loop(model, 10)

    alone = compilations(run, nullcontext(), in_place)
    prof = limited(*THIRDS, functions=functions)
    assert compilations(run, prof, in_place) == alone
    assert calls(prof.profile, "Net", "forward") == 10


# Steps that do not end in order


class Fails(Net):
    """Raises an exception when it is told to."""

    error: type[BaseException] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if self.error is not None:
            raise self.error("planted")
        return y


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
@pytest.mark.parametrize("caught", range(5))
@each_loop
def test_a_loop_goes_on_after_exceptions_until_one_goes_through(
    limited: Limited, loop: Loop, caught: int, error: type[BaseException]
) -> None:
    model, prof = Fails(), limited(*THIRDS)
    before = registered(model)
    with pytest.raises(error, match="planted"), prof:  # noqa: PT012
        for _ in range(caught):
            model.error = None
            loop(model, 1)
            model.error = error
            with pytest.raises(error, match="planted"):
                loop(model, 1)
        model.error = error
        loop(model, 1)
    found = prof.profile
    assert registered(model) == before
    assert calls(found, "Fails", "forward") == 2 * caught + 1
    assert found.aborted_calls == caught + 1
    assert found.measured.measured < found.measured.steps or caught < 2
    check_sums(found)


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
    model, prof = Net(), profile(max_overhead=0.01)
    before = registered(model)
    with pytest.raises(KeyboardInterrupt), prof:
        pass
    assert registered(model) == before
    monkeypatch.undo()
    with prof:
        model(X)
    assert calls(prof.profile, "Net") == 1
