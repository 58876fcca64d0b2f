"""The protocol of session hooks: who is called when, as call logs."""

from __future__ import annotations

import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch

from tests.session.recording import END, RUN, START, TOLD, Recorder, raises
from torchprof_hooks import RunContext, SessionHook, TrainingSession


class Loop:
    """A session with two hooks, a and b, that share a log with the step."""

    def __init__(self, **does_of_b: Any) -> None:
        self.log: list[str] = []
        self.a = Recorder("a", self.log)
        self.b = Recorder("b", self.log, **does_of_b)
        self.session = TrainingSession([self.a, self.b])

    def step(self, value: Any = None) -> Any:
        self.log.append("step")
        if isinstance(value, BaseException):
            raise value
        return value


def test_a_normal_session() -> None:
    loop = Loop()
    with loop.session as session:
        assert session.run(loop.step, 5) == 5
        assert session.run(loop.step, value=6) == 6
        assert session.step == 2
    assert loop.log == [*START, *RUN, *RUN, *END]
    assert [values.value for values in loop.a.values] == [5, 6]
    assert [values.step for values in loop.b.values] == [1, 2]


def test_hooks_are_told_what_runs() -> None:
    loop = Loop()
    with loop.session as session:
        session.run(loop.step, 5)
    before, after = loop.a.contexts
    assert before is after is loop.b.contexts[0]
    assert before.session is loop.session
    assert before.function == loop.step
    assert (before.args, before.kwargs, before.step) == ((5,), {}, 0)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_a_step_that_raises(error: type[BaseException]) -> None:
    loop = Loop()
    raised = error("planted")
    with pytest.raises(error) as info, loop.session as session:
        session.run(loop.step, raised)
    assert info.value is raised
    assert loop.log == [*START, *RUN[:3], *TOLD]
    assert loop.a.errors == [(loop.a.contexts[0], raised)]
    assert session.step == 0


def test_a_step_that_raises_may_be_tried_again() -> None:
    loop = Loop()
    with loop.session as session:
        with pytest.raises(ValueError, match="planted"):
            session.run(loop.step, ValueError("planted"))
        session.run(loop.step)
    assert loop.log == [*START, *RUN[:3], *TOLD, *RUN, *END]


BAD, STOP = ValueError("planted"), StopIteration()


@pytest.mark.parametrize(
    ("callback", "error", "log"),
    [
        ("step", STOP, [*RUN[:3], *END]),
        ("before_run", BAD, [*RUN[:2], *TOLD]),
        ("before_run", STOP, [*RUN[:2], *END]),
        ("after_run", BAD, [*RUN, *TOLD]),
        ("after_run", STOP, [*RUN, *END]),
    ],
)
def test_who_is_called_if_a_run_raises(
    callback: str, error: Exception, log: list[str]
) -> None:
    loop = Loop(**{callback: raises(error)})
    with suppress(ValueError), loop.session as session:
        session.run(loop.step, error if callback == "step" else None)
        pytest.fail("not left")
    assert loop.log == [*START, *log]


def test_a_body_that_raises() -> None:
    loop = Loop()
    raised = KeyError("planted")

    def train() -> None:
        with loop.session as session:
            session.run(loop.step)
            raise raised

    with pytest.raises(KeyError):
        train()
    assert loop.log == [*START, *RUN, *TOLD]
    assert loop.b.errors == [(None, raised)]


@pytest.mark.parametrize(
    ("callback", "log"),
    [("begin", [*START[:2], *TOLD]), ("after_create_session", [*START, *TOLD])],
)
def test_a_hook_that_raises_at_the_start(callback: str, log: list[str]) -> None:
    loop = Loop(**{callback: raises(ValueError("planted"))})
    with pytest.raises(ValueError, match="planted"):
        loop.session.__enter__()
    assert loop.log == log
    with pytest.raises(RuntimeError, match="closed"):
        loop.session.run(loop.step)
    with TrainingSession([loop.a]):  # the hooks are free again
        pass


def test_a_hook_that_raises_at_the_end() -> None:
    log: list[str] = []
    a, c = Recorder("a", log), Recorder("c", log)
    b = Recorder("b", log, end=raises(ValueError("planted")))
    with pytest.raises(ValueError, match="planted"), TrainingSession([a, b, c]):
        pass
    assert log[-3:] == ["a.end", "b.end", "c.on_exception"]


def test_close_ends_once() -> None:
    loop = Loop()
    with loop.session as session:
        session.run(loop.step)
        session.close()
        with pytest.raises(RuntimeError, match="closed"):
            session.run(loop.step)
    assert loop.log == [*START, *RUN, *END]


def test_request_stop_of_a_hook_counts_after_the_run() -> None:
    seen: list[bool] = []

    def stop(context: RunContext) -> None:
        context.request_stop()
        seen.append(context.stop_requested)
        seen.append(context.session.should_stop())

    loop = Loop(before_run=stop)
    with loop.session as session:
        assert session.run(loop.step, 3) == 3  # completed
        assert session.should_stop()
        with pytest.raises(RuntimeError, match="asked to stop"):
            session.run(loop.step)
    assert seen == [True, False]
    assert loop.log == [*START, *RUN, *END]


def test_request_stop_is_void_if_the_run_raises() -> None:
    loop = Loop(before_run=RunContext.request_stop)
    with loop.session as session:
        with pytest.raises(ValueError, match="planted"):
            session.run(loop.step, ValueError("planted"))
        assert not session.should_stop()


def test_request_stop_from_outside() -> None:
    loop = Loop()
    with loop.session as session:
        while not session.should_stop():
            session.run(loop.step)
            if session.step == 3:
                session.request_stop()
    assert session.step == 3


def test_fetches_come_back_in_their_structure() -> None:
    class Pair(NamedTuple):
        first: Any
        second: Any

    loop = Loop()
    loop.a.fetches = {"one": lambda: 1, "many": [lambda: 2, Pair(lambda: 3, int)]}
    with loop.session as session:
        session.run(loop.step)
    assert loop.a.values[0].results == {"one": 1, "many": [2, Pair(3, 0)]}
    assert loop.b.values[0].results is None


def test_fetches_are_functions() -> None:
    loop = Loop()
    loop.a.fetches = [5]
    with pytest.raises(TypeError, match="must be functions, not 5"), loop.session as s:
        s.run(loop.step)


def test_run_without_hooks_is_no_step() -> None:
    loop = Loop()
    with loop.session as session:
        assert session.run_without_hooks(loop.step, 4) == 4
        assert session.step == 0
    assert loop.log == [*START, "step", *END]


def test_resumed() -> None:
    with TrainingSession(start_step=100) as session:
        session.run(int)
        assert session.step == 101


def test_used_outside_of_its_with() -> None:
    session = TrainingSession()
    with pytest.raises(RuntimeError, match="not entered yet"):
        session.run(int)
    with session:
        pass
    for use in (lambda: session.run(int), lambda: session.run_without_hooks(int)):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    with pytest.raises(RuntimeError, match="entered once"), session:
        pass


def test_a_hook_serves_one_session_at_a_time() -> None:
    hook = SessionHook()
    second = TrainingSession([hook])
    in_use = pytest.raises(RuntimeError, match="in use by another session")
    with TrainingSession([hook]), in_use:
        second.__enter__()
    with TrainingSession([hook]):  # free again
        pass
    with pytest.raises(RuntimeError, match="twice in this one"):
        TrainingSession([hook, hook]).__enter__()


def test_what_follows_a_step_that_has_failed_is_not_told_again() -> None:
    loop = Loop()

    def train() -> None:
        with loop.session as session:
            with suppress(ValueError):
                session.run(loop.step, ValueError("of the step"))
            raise KeyError("of the body")

    with pytest.raises(KeyError):
        train()
    assert loop.log == [*START, *RUN[:3], *TOLD]


def test_the_error_of_an_earlier_step_is_told_again_at_the_end() -> None:
    """Hooks have begun again since: they have to end."""
    loop = Loop()

    def train() -> None:
        errors: list[ValueError] = []
        with loop.session as session:
            for value in (ValueError("of the first step"), None):
                try:
                    session.run(loop.step, value)
                except ValueError as error:
                    errors.append(error)
            raise errors[0]

    with pytest.raises(ValueError, match="of the first step"):
        train()
    assert loop.log == [*START, *RUN[:3], *TOLD, *RUN, *TOLD]


def test_every_hook_is_told_even_if_one_raises() -> None:
    loop = Loop()
    loop.a.does["on_exception"] = raises(KeyError("of the hook"))
    with pytest.raises(KeyError, match="of the hook"), loop.session as session:
        session.run(loop.step, ValueError("planted"))
    assert loop.log == [*START, *RUN[:3], *TOLD]


def test_the_tensors_of_a_failed_step_are_not_kept() -> None:
    kept: list[weakref.ref[torch.Tensor]] = []

    def step() -> None:
        tensor = torch.ones(3)
        kept.append(weakref.ref(tensor))
        raise MemoryError("planted")

    with TrainingSession([SessionHook()]) as session:
        with suppress(MemoryError):
            session.run(step)
        assert kept[0]() is None


def test_hooks_may_be_dataclasses() -> None:
    @dataclass
    class Hook(SessionHook):
        value: int = 1

    with TrainingSession([Hook(), Hook()]) as session:
        session.run(int)
