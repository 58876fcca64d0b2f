"""Exceptions in hooks, in what they are put on, and around them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any, NamedTuple

import pytest
import torch.nn.functional as F
from torch import nn

from tests.functions import (
    CUBE,
    Cube,
    FunctionRecorder,
    Runs,
    backward,
    forward,
    raises,
    x,
)
from tests.helpers import BACKWARD, FORWARD, MyModel, Recorder, inputs
from tests.seeds.hook_places import (
    AROUND,
    ERRORS,
    PLACES,
    TARGETS,
    ActingFunctionRecorder,
    ActingRecorder,
    Place,
)
from tests.thorough import THOROUGH
from torchprof_hooks import add_hook, delete_hook, profile
from torchprof_hooks.kernel.core import CORE

pytestmark = pytest.mark.usefixtures("no_mode_stays")

FAIL = raises(LookupError)
PLANNED = pytest.raises(LookupError, match="planned")


def functions_step() -> None:
    Cube.apply(x()).sum().backward()


class Step(NamedTuple):
    """One of which thread-wide hooks are told these events."""

    acting: Any
    run: Callable[[], None]
    events: list[str]


def of_modules() -> Step:
    model = MyModel()
    run = lambda: model(inputs()).sum().backward()  # noqa: E731
    return Step(ActingRecorder, run, [*FORWARD, *BACKWARD])


def of_functions() -> Step:
    events = [*CUBE, *forward("sum"), *backward("sum", "Cube")]
    return Step(ActingFunctionRecorder, functions_step, events)


STEPS = {"modules": of_modules, "functions": of_functions}


def until(event: str, events: list[str]) -> list[str]:
    return events[: events.index(event) + 1]


# Hooks that raise


@pytest.mark.parametrize(
    ("error", "failing_first"),
    [
        (LookupError, True),
        (KeyboardInterrupt, False),
        pytest.param(LookupError, False, marks=THOROUGH),
        pytest.param(KeyboardInterrupt, True, marks=THOROUGH),
    ],
)
@pytest.mark.parametrize(
    ("kind", "at"), [(k, at) for k in STEPS for at in dict.fromkeys(STEPS[k]().events)]
)
def test_a_thread_wide_hook_that_raises(
    kind: str, at: str, failing_first: bool, error: type[BaseException]
) -> None:
    # GIVEN a hook that raises, next to another one and a profiler, which do not
    step = STEPS[kind]()
    hook, other = step.acting(at, raises(error)), step.acting("", int)
    other.name, prof = "other", profile(functions=True)
    hooks = [hook, other, prof] if failing_first else [prof, other, hook]
    with ExitStack() as stack:
        for active in hooks:
            stack.enter_context(active)
        # WHEN it has raised
        with pytest.raises(error, match="planned"):
            step.run()
        events = hook.taken()
        other.taken()
        step.run()

    # THEN it got no post for what it left, and the next step is complete, for all
    assert events == ["added NoneType", *until(at, step.events)]
    assert hook.events[: len(step.events)] == step.events
    assert [e for e in other.events if "deleted" not in e] == step.events
    assert sum(row.self_ns for row in prof.profile.rows()) == prof.profile.wall_ns
    if kind == "modules":
        places = [(depth, node.name) for depth, node in prof.profile.tree().walk()]
        modules = [place for place in places if place[1].startswith("MyModel")]
        assert sorted(modules) == [(1, "MyModel"), (2, "MyModel.l1"), (2, "MyModel.l2")]
    elif CORE.module is None:
        return  # no functions are measured
    name = "MyModel.l2" if kind == "modules" else "Cube"
    rows = prof.profile.rows("module" if kind == "modules" else "function")
    (row,) = (row for row in rows if row.name == name)
    assert row.phases["forward"].calls in (1, 2)  # of the first step, maybe
    assert row.phases["backward"].calls in (1, 2)


@pytest.mark.parametrize(
    ("where", "at"), [(w, event) for w in TARGETS for event in TARGETS[w]().events]
)
def test_a_hook_on_one_target_that_raises(where: str, at: str) -> None:
    target = TARGETS[where]()
    hook = target.acting(at, FAIL)
    target.add(hook)

    with PLANNED:
        target.step()
    events = hook.taken()
    target.step()
    target.delete(hook)

    assert events == [target.added, *until(at, target.events)]
    assert hook.events == [*target.events, target.deleted]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    return PLACES[request.param]()


def test_a_hook_that_raises_when_it_is_added_is_not_there(place: Place) -> None:
    hook = place.acting(place.added, FAIL)

    with PLANNED:
        place.add(hook)
    place.step()
    place.add(hook)
    place.step()
    place.delete(hook)

    assert hook.events == [*[place.added] * 2, *place.events, place.deleted]


def test_a_hook_that_raises_when_it_is_deleted_is_gone(place: Place) -> None:
    hook = place.acting(place.deleted, FAIL)

    place.add(hook)
    with PLANNED:
        place.delete(hook)
    place.step()
    second = place.kind()  # its name is free
    place.add(second)
    place.delete(second)

    assert hook.events == [place.added, place.deleted]


# Functions and modules that raise


@ERRORS
@pytest.mark.parametrize("kind", [Recorder, FunctionRecorder])
def test_the_body_may_raise(error: type[BaseException], kind: Any) -> None:
    hook = kind()

    with pytest.raises(error, match="of the body"), hook:
        raise error("of the body")
    MyModel()(x())

    assert hook.events == ["added NoneType", "deleted NoneType"]


@ERRORS
@pytest.mark.parametrize("local", [False, True])
@pytest.mark.parametrize("what", AROUND)
def test_a_call_that_raises_has_no_post(
    what: str, local: bool, error: type[BaseException]
) -> None:
    around = AROUND[what]()
    hook = around.kind()
    if local:
        add_hook(around.target, hook)
    with nullcontext() if local else hook:
        hook.taken()
        with pytest.raises(error, match="planned"):
            around.call(raises(error))
        events = hook.taken()
        around.call(int)
        complete = hook.taken()
    if local:
        delete_hook(around.target, hook.name)

    assert events == (around.local[:1] if local else around.first_half)
    assert complete == (around.local if local else around.whole)


def test_a_torch_function_that_raises() -> None:
    with FunctionRecorder() as hook:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            F.linear(x(), x(2, 2))
        F.linear(x(), x(3, 3)).sum().backward()

    assert hook.events[1:-1] == [
        "pre linear",
        *forward("linear", "sum"),
        *backward("sum", "linear"),
    ]


@ERRORS
def test_an_inner_function_that_raises_and_is_caught(
    error: type[BaseException],
) -> None:
    def attempt() -> None:
        with pytest.raises(error):
            Runs.apply(x(), raises(error))
        x().exp()

    with FunctionRecorder() as hook:
        Runs.apply(x(), attempt).sum().backward()

    assert hook.events[1:-1] == [
        *["pre Runs", "pre Runs", *forward("exp", "clone"), "post Runs"],
        *forward("sum"),
        *backward("sum", "Runs"),
    ]


@ERRORS
def test_an_inner_module_that_raises_and_is_caught(error: type[BaseException]) -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.risky, self.safe = MyModel(), nn.Identity()
            self.risky.between = raises(error)

        def forward(self) -> None:
            with pytest.raises(error):
                self.risky(inputs())
            self.safe(inputs())

    with Recorder() as hook:
        Tries()()

    assert hook.events[4:-1] == [
        "post Tries.risky.l1",
        *forward("Tries.safe"),
        "post Tries",
    ]


@ERRORS
@pytest.mark.parametrize("on", ["thread", "class", "node"])
def test_a_backward_that_raises_has_no_post(
    on: str, error: type[BaseException]
) -> None:
    hook, errors = FunctionRecorder(), [error]

    def fail_once() -> None:
        if errors:
            raise errors.pop()

    with hook if on == "thread" else nullcontext():
        if on == "class":
            add_hook(Runs, hook)
        hidden = Runs.apply(x(), int, fail_once)
        target = {"thread": None, "class": Runs, "node": hidden.grad_fn}[on]
        if on == "node":
            add_hook(target, hook)
        loss = hidden.sum()
        hook.taken()
        with pytest.raises(error):
            loss.backward(retain_graph=True)
        events = hook.taken()
        loss.backward()
    if on != "thread":
        delete_hook(target, hook.name)

    before = backward("sum") if on == "thread" else []
    both = backward("RunsBackward" if on == "node" else "Runs")
    assert events == [*before, both[0]]
    assert hook.events[:-1] == [*before, *both]
