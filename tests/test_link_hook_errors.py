from __future__ import annotations

from contextlib import ExitStack

import pytest
from torch import nn

from tests.helpers import BACKWARD, FORWARD, MyModel, Recorder, inputs
from torchprof_hooks import LinkHook, Profile, add_hook, delete_hook, profile


class OopsError(Exception):
    """What the hooks in this file raise."""


class Failing(Recorder):
    """Raises, once, when it has written down the event `at`."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at: str | None = at

    def log(self, event: str) -> None:
        super().log(event)
        if event == self.at:
            self.at = None
            raise OopsError(event)


def assert_well_nested(measured: Profile) -> None:
    """Two calls of a `MyModel`, the first of which an exception ended somewhere."""
    places = [(depth, node.name) for depth, node in measured.tree().walk()]
    modules = [place for place in places if place[1].startswith("MyModel")]
    assert sorted(modules) == [(1, "MyModel"), (2, "MyModel.l1"), (2, "MyModel.l2")]
    calls = {row.name: row.calls for row in measured.rows()}
    assert calls["MyModel"] >= calls["MyModel.l2"] >= 1


@pytest.mark.parametrize("failing_first", [True, False])
@pytest.mark.parametrize("at", FORWARD)
def test_a_hook_that_raises_in_forward(at: str, failing_first: bool) -> None:
    # GIVEN a hook that raises, next to a profiler
    model, hook, profiler = MyModel(), Failing(at), profile()
    with ExitStack() as stack:
        for active in (hook, profiler) if failing_first else (profiler, hook):
            stack.enter_context(active)
        # WHEN it has raised
        with pytest.raises(OopsError, match=at):
            model(inputs())
        events = hook.taken()
        model(inputs())

    # THEN it got no post for what it left, and the next call is complete
    assert events == ["added NoneType", *FORWARD[: FORWARD.index(at) + 1]]
    assert hook.events == [*FORWARD, "deleted NoneType"]
    assert_well_nested(profiler.profile)


@pytest.mark.parametrize("at", BACKWARD)
def test_a_hook_that_raises_in_backward(at: str) -> None:
    model = MyModel()
    with profile() as profiler, Failing(at) as hook:
        loss = model(inputs()).sum()
        hook.taken()
        with pytest.raises(OopsError, match=at):
            loss.backward()
        events = hook.taken()
        model(inputs()).sum().backward()

    assert events == BACKWARD[: BACKWARD.index(at) + 1]
    assert hook.events == [*FORWARD, *BACKWARD, "deleted NoneType"]
    assert_well_nested(profiler.profile)


@pytest.mark.parametrize(
    "at", ["pre Linear", "post Linear", "backward pre Linear", "backward post Linear"]
)
def test_a_hook_on_one_module_that_raises(at: str) -> None:
    model, hook = MyModel(), Failing(at)
    add_hook(model.l1, hook)
    all_four = ["pre Linear", "post Linear"]
    all_four += ["backward pre Linear", "backward post Linear"]

    with pytest.raises(OopsError, match=at):
        model(inputs()).sum().backward()
    events = hook.taken()
    model(inputs()).sum().backward()

    assert events == ["added Linear", *all_four[: all_four.index(at) + 1]]
    assert hook.events == all_four


def test_a_hook_that_raises_when_it_is_entered_is_not_active() -> None:
    model, hook = MyModel(), Failing("added NoneType")

    with pytest.raises(OopsError), hook:
        pytest.fail("the body was entered")
    model(inputs())
    with hook:
        model(inputs())

    assert hook.events == [*["added NoneType"] * 2, *FORWARD, "deleted NoneType"]


def test_a_hook_that_raises_when_it_is_left_is_gone() -> None:
    model, hook = MyModel(), Failing("deleted NoneType")

    with pytest.raises(OopsError), hook:
        model(inputs())
    model(inputs())
    with Recorder():  # its name is free
        pass

    assert hook.events == ["added NoneType", *FORWARD, "deleted NoneType"]


def test_a_hook_that_raises_when_added_to_a_module_is_not_there() -> None:
    model, hook = MyModel(), Failing("added MyModel")

    with pytest.raises(OopsError):
        add_hook(model, hook)
    model(inputs())
    add_hook(model, hook)
    model(inputs())

    expected = ["added MyModel", "added MyModel", "pre MyModel", "post MyModel"]
    assert hook.events == expected


def test_a_hook_that_raises_when_deleted_from_a_module_is_gone() -> None:
    model, hook = MyModel(), Failing("deleted MyModel")
    add_hook(model, hook)

    with pytest.raises(OopsError):
        delete_hook(model, "Recorder")
    model(inputs())
    add_hook(model, Recorder())  # its name is free

    assert hook.events == ["added MyModel", "deleted MyModel"]


@pytest.mark.parametrize("error", [OopsError, KeyboardInterrupt, SystemExit])
def test_the_body_may_raise(error: type[BaseException]) -> None:
    model, hook = MyModel(), Recorder()

    with pytest.raises(error, match="of the body"), hook:
        raise error("of the body")
    model(inputs())

    assert hook.events == ["added NoneType", "deleted NoneType"]


INTERRUPTS = pytest.mark.parametrize(
    "error", [OopsError, KeyboardInterrupt, SystemExit]
)


def interrupted(error: type[BaseException]) -> MyModel:
    """A model that was left by an exception in the middle of its forward, once."""
    model = MyModel()

    def interrupt() -> None:
        model.between = int
        raise error

    model.between = interrupt
    return model


@INTERRUPTS
def test_a_forward_that_raises(error: type[BaseException]) -> None:
    model = interrupted(error)
    with Recorder() as hook:
        with pytest.raises(error):
            model(inputs())
        events = hook.taken()
        model(inputs()).sum().backward()

    assert events == ["added NoneType", *FORWARD[:3]]
    assert hook.events == [*FORWARD, *BACKWARD, "deleted NoneType"]


@INTERRUPTS
def test_a_forward_that_raises_with_a_hook_on_the_module(
    error: type[BaseException],
) -> None:
    model, hook = interrupted(error), Recorder()
    add_hook(model, hook)

    with pytest.raises(error):
        model(inputs())
    events = hook.taken()
    model(inputs()).sum().backward()

    assert events == ["added MyModel", "pre MyModel"]
    assert hook.events == [
        "pre MyModel",
        "post MyModel",
        "backward pre MyModel",
        "backward post MyModel",
    ]


@INTERRUPTS
def test_an_inner_forward_that_raises_and_is_caught(error: type[BaseException]) -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.risky, self.safe = interrupted(error), nn.Identity()

        def forward(self) -> None:
            try:
                self.risky(inputs())
            except error:
                self.safe(inputs())

    with Recorder() as hook:
        Tries()()

    assert hook.events[4:-1] == [
        "post Tries.risky.l1",
        "pre Tries.safe",
        "post Tries.safe",
        "post Tries",
    ]


def test_a_hook_does_not_hide_the_models_exception() -> None:
    class Quiet(LinkHook):
        def forward_postprocess(self, args: object) -> None:
            pytest.fail("a call that raises has no post")

    with Quiet(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        nn.Linear(2, 2)(inputs())
