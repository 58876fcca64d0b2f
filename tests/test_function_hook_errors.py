"""Exceptions in functions, in hooks and around them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
import torch.nn.functional as F

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
from torchprof_hooks import FunctionHook, add_hook, delete_hook, profile

pytestmark = pytest.mark.usefixtures("no_mode_stays")


class OopsError(Exception):
    """What is raised in this file."""


ERRORS = pytest.mark.parametrize("error", [OopsError, KeyboardInterrupt, SystemExit])

#: The callbacks of `step`.
STEP = [*CUBE, *forward("sum"), *backward("sum", "Cube")]


def step() -> None:
    Cube.apply(x()).sum().backward()


class Failing(FunctionRecorder):
    """Raises, once, when it has written down the event `at`."""

    def __init__(self, at: str, error: type[BaseException] = OopsError) -> None:
        super().__init__()
        self.at: str | None = at
        self.error = error

    def log(self, event: str) -> None:
        super().log(event)
        if event == self.at:
            self.at = None
            raise self.error(event)


# Hooks that raise


@pytest.mark.parametrize("failing_first", [True, False])
@pytest.mark.parametrize("at", dict.fromkeys(STEP))
def test_a_hook_that_raises(at: str, failing_first: bool) -> None:
    # GIVEN a hook that raises, next to one that does not
    hook, other = Failing(at), FunctionRecorder("other")
    with ExitStack() as stack:
        for active in (hook, other) if failing_first else (other, hook):
            stack.enter_context(active)
        # WHEN it has raised
        with pytest.raises(OopsError, match=at):
            step()
        events = hook.taken()
        other.taken()
        step()

    # THEN it got no post for what it left, and the next step is complete
    assert events == ["added NoneType", *STEP[: STEP.index(at) + 1]]
    assert hook.events[:-1] == STEP
    assert [e for e in other.events if "deleted" not in e] == STEP


@ERRORS
@pytest.mark.parametrize("at", dict.fromkeys(STEP))
def test_a_profile_survives_a_hook_that_raises(
    at: str, error: type[BaseException]
) -> None:
    with profile(functions=True) as measured, Failing(at, error):
        with pytest.raises(error):
            step()
        step()

    rows = measured.profile.rows(by="function")
    calls = {row.name: {p: t.calls for p, t in row.phases.items()} for row in rows}
    assert calls["Cube"]["forward"] in (1, 2)  # of the second step, maybe of the first
    assert calls["Cube"]["backward"] in (1, 2)
    assert sum(row.self_ns for row in rows) == measured.profile.wall_ns


@pytest.mark.parametrize(
    "at", ["pre Cube", "post Cube", "backward pre Cube", "backward post Cube"]
)
def test_a_hook_on_one_class_that_raises(at: str) -> None:
    hook = Failing(at)
    add_hook(Cube, hook)
    all_four = [*forward("Cube"), *backward("Cube")]

    with pytest.raises(OopsError, match=at):
        step()
    events = hook.taken()
    step()
    delete_hook(Cube, hook.name)

    assert events == ["added Cube", *all_four[: all_four.index(at) + 1]]
    assert hook.events == [*all_four, "deleted Cube"]


@pytest.mark.parametrize(
    "at", ["pre relu", "post relu", "backward pre relu", "backward post relu"]
)
def test_a_hook_on_one_torch_function_that_raises(at: str) -> None:
    hook = Failing(at)
    add_hook(F.relu, hook)
    all_four = [*forward("relu"), *backward("relu")]

    with pytest.raises(OopsError, match=at):
        F.relu(x()).sum().backward()
    events = hook.taken()
    F.relu(x()).sum().backward()
    delete_hook(F.relu, hook.name)

    assert events == ["added relu", *all_four[: all_four.index(at) + 1]]
    assert hook.events == [*all_four, "deleted relu"]


@pytest.mark.parametrize(
    "at", ["backward pre ExpBackward0", "backward post ExpBackward0"]
)
def test_a_hook_on_one_node_that_raises(at: str) -> None:
    hidden = x().exp()
    loss, hook = hidden.sum(), Failing(at)
    add_hook(hidden.grad_fn, hook)
    both = backward("ExpBackward0")

    with pytest.raises(OopsError, match=at):
        loss.backward(retain_graph=True)
    events = hook.taken()
    loss.backward()

    assert events[1:] == both[: both.index(at) + 1]
    assert hook.events == both


def test_a_hook_that_raises_when_it_is_entered_is_not_active() -> None:
    hook = Failing("added NoneType")

    with pytest.raises(OopsError), hook:
        pytest.fail("the body was entered")
    x().exp()
    with hook:
        x().exp()

    expected = [*["added NoneType"] * 2, *forward("exp"), "deleted NoneType"]
    assert hook.events == expected


def test_a_hook_that_raises_when_it_is_left_is_gone() -> None:
    hook = Failing("deleted NoneType")

    with pytest.raises(OopsError), hook:
        x().exp()
    x().exp()
    with FunctionRecorder():  # its name is free
        pass

    assert hook.events == ["added NoneType", *forward("exp"), "deleted NoneType"]


@pytest.mark.parametrize("target", [F.relu, Cube])
def test_a_hook_that_raises_when_added_to_a_target_is_not_there(target: Any) -> None:
    name = target.__name__
    call, hook = Cube.apply if target is Cube else F.relu, Failing(f"added {name}")

    with pytest.raises(OopsError):
        add_hook(target, hook)
    call(x())
    add_hook(target, hook)
    call(x())
    delete_hook(target, hook.name)

    expected = [*[f"added {name}"] * 2, *forward(name), f"deleted {name}"]
    assert hook.events == expected


@pytest.mark.parametrize("target", [F.relu, Cube])
def test_a_hook_that_raises_when_deleted_from_a_target_is_gone(target: Any) -> None:
    name = target.__name__
    call, hook = Cube.apply if target is Cube else F.relu, Failing(f"deleted {name}")
    add_hook(target, hook)

    with pytest.raises(OopsError):
        delete_hook(target, hook.name)
    call(x())
    add_hook(target, FunctionRecorder())  # its name is free
    delete_hook(target, hook.name)

    assert hook.events == [f"added {name}", f"deleted {name}"]


# Functions that raise


@ERRORS
def test_the_body_may_raise(error: type[BaseException]) -> None:
    hook = FunctionRecorder()

    with pytest.raises(error, match="of the body"), hook:
        raise error("of the body")
    x().exp()

    assert hook.events == ["added NoneType", "deleted NoneType"]


@ERRORS
def test_a_forward_that_raises_has_no_post(error: type[BaseException]) -> None:
    with FunctionRecorder() as hook:
        with pytest.raises(error):
            Runs.apply(x().exp(), raises(error))
        events = hook.taken()
        step()

    assert events == ["added NoneType", *forward("exp"), "pre Runs"]
    assert hook.events == [*STEP, "deleted NoneType"]


@ERRORS
def test_a_forward_that_raises_with_a_hook_on_the_class(
    error: type[BaseException],
) -> None:
    hook = FunctionRecorder()
    add_hook(Runs, hook)

    with pytest.raises(error):
        Runs.apply(x(), raises(error))
    events = hook.taken()
    Runs.apply(x()).sum().backward()
    delete_hook(Runs, hook.name)

    assert events == ["added Runs", "pre Runs"]
    assert hook.events[:-1] == [*forward("Runs"), *backward("Runs")]


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
def test_a_backward_that_raises_has_no_post(error: type[BaseException]) -> None:
    with FunctionRecorder() as hook:
        loss = Runs.apply(x().exp(), int, raises(error)).sin().sum()
        hook.taken()
        with pytest.raises(error):
            loss.backward()
        events = hook.taken()
        step()

    assert events == [*backward("sum", "sin"), "backward pre Runs"]
    assert hook.events == [*STEP, "deleted NoneType"]


@ERRORS
@pytest.mark.parametrize("target", ["class", "node"])
def test_a_backward_that_raises_with_a_hook_on_a_target(
    target: str, error: type[BaseException]
) -> None:
    hook, errors = FunctionRecorder(), [error]

    def fail_once() -> None:
        if errors:
            raise errors.pop()

    if target == "class":
        add_hook(Runs, hook)
    hidden = Runs.apply(x(), int, fail_once)
    if target == "node":
        add_hook(hidden.grad_fn, hook)
    hook.taken()

    loss = hidden.sum()
    with pytest.raises(error):
        loss.backward(retain_graph=True)
    events = hook.taken()
    loss.backward()
    delete_hook(Runs if target == "class" else hidden.grad_fn, hook.name)

    both = backward("Runs" if target == "class" else "RunsBackward")
    assert events == both[:1]
    assert hook.events[:-1] == both


def test_a_hook_does_not_hide_the_functions_exception() -> None:
    class Quiet(FunctionHook):
        def forward_postprocess(self, *_: Any) -> None:
            pytest.fail("a call that raises has no post")

    with Quiet(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        F.linear(x(), x(2, 2))
