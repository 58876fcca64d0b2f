"""The protocol of session hooks: who is called when, as call logs."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

import pytest
import torch

from tests.seeds.session.recording import END, RUN, START, TOLD, Recorder
from torchprof_hooks import RunContext, SessionHook, TrainingSession


class Loop:
    """A session with two hooks, a and b, that share a log with the step."""

    def __init__(self, does: dict[str, Any] | None = None) -> None:
        self.log: list[str] = []
        self.a, self.b = (Recorder(name, self.log, does or {}) for name in "ab")
        self.session = TrainingSession([self.a, self.b])

    def step(self, value: Any = None) -> Any:
        self.log.append("step")
        if isinstance(value, BaseException):
            raise value
        return value

    def train(self, steps: list[Any], then: BaseException | None = None) -> None:
        """Run steps that return or raise these, and raise something `then`. A
        ValueError of a step leaves the session only if nothing comes after it."""
        with self.session as session:
            for number, value in enumerate(steps, 1):
                try:
                    session.run(self.step, value)
                except ValueError:
                    if number == len(steps) and not then:
                        raise
            if then:
                raise then


BAD, OTHER, STOP = ValueError("planted"), KeyError("planted"), StopIteration()
CTRL_C, EXIT = KeyboardInterrupt(), GeneratorExit()
FAILED = [*RUN[:3], *TOLD]
#: What a hook raises; what steps return or raise, and what is raised after them; what
#: leaves the session; and who is called after its start.
SESSIONS: dict[str, tuple[dict[str, Any], list[Any], Any, Any, list[str]]] = {
    "two steps": ({}, [5, 6], None, None, [*RUN, *RUN, *END]),
    "a step that raises": ({}, [BAD], None, BAD, FAILED),
    "a step that is interrupted": ({}, [CTRL_C], None, CTRL_C, FAILED),
    "a generator that is closed": ({}, [EXIT], None, EXIT, FAILED),
    "no data for a step": ({}, [STOP], None, None, [*RUN[:3], *END]),
    "a step that is tried again": ({}, [BAD, 5], None, None, [*FAILED, *RUN, *END]),
    "a body that raises": ({}, [5], OTHER, OTHER, [*RUN, *TOLD]),
    "a body that raises after a failed step, which hooks know": (
        *({}, [BAD], OTHER, OTHER, FAILED),
    ),
    # Hooks have begun again since: they have to end.
    "a body that raises again what an earlier step has raised": (
        *({}, [BAD, 5], BAD, BAD, [*FAILED, *RUN, *TOLD]),
    ),
    "before_run raises": (*({"b.before_run": BAD}, [5], None, BAD, [*RUN[:2], *TOLD]),),
    "no data in before_run": (
        *({"b.before_run": STOP}, [5], None, None, [*RUN[:2], *END]),
    ),
    "after_run raises": ({"b.after_run": BAD}, [5], None, BAD, [*RUN, *TOLD]),
    "no data in after_run": ({"b.after_run": STOP}, [5], None, None, [*RUN, *END]),
    "on_exception raises, and others are told": (
        *({"a.on_exception": OTHER}, [BAD], None, OTHER, FAILED),
    ),
    "end raises, and others are told": (
        *({"a.end": BAD}, [5], None, BAD, [*RUN, "a.end", "b.on_exception"]),
    ),
}


@pytest.mark.parametrize("case", SESSIONS)
def test_who_is_called(case: str) -> None:
    does, steps, then, leaves, log = SESSIONS[case]
    loop, left = Loop(does), None
    try:
        loop.train(steps, then)
    except BaseException as error:  # also what is to be no Exception
        left = error
    assert left is leaves
    assert loop.log == [*START, *log]
    assert loop.session.step == log.count("a.after_run")
    with pytest.raises(RuntimeError, match="closed"):
        loop.session.run(loop.step)
    with TrainingSession([loop.b]):  # the hooks are free again
        pass


@pytest.mark.parametrize(
    ("callback", "log"),
    [("begin", START[:2]), ("after_create_session", START)],
)
def test_a_hook_that_raises_at_the_start(callback: str, log: list[str]) -> None:
    loop = Loop({f"b.{callback}": BAD})
    with pytest.raises(ValueError, match="planted"):
        loop.session.__enter__()
    assert loop.log == [*log, *TOLD]
    with pytest.raises(RuntimeError, match="closed"):
        loop.session.run(loop.step)
    with TrainingSession([loop.a]):  # the hooks are free again
        pass


def test_what_hooks_are_told() -> None:
    loop = Loop()
    with suppress(KeyError), loop.session as session:
        assert session.run(loop.step, 5) == 5
        assert session.run(loop.step, value=6) == 6
        with suppress(ValueError):
            session.run(loop.step, BAD)
        session.run(loop.step)
        raise OTHER
    assert [values.value for values in loop.a.values] == [5, 6, None]
    assert [values.step for values in loop.b.values] == [1, 2, 3]
    before, after = loop.a.contexts[:2]
    assert before is after is loop.b.contexts[0]
    assert before.session is loop.session
    assert before.function == loop.step
    assert (before.args, before.kwargs, before.step) == ((5,), {}, 0)
    assert loop.b.errors == [(loop.a.contexts[4], BAD), (None, OTHER)]


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

    loop = Loop({"b.before_run": stop})
    with loop.session as session:
        with suppress(ValueError):  # of a run that raises, it is void
            session.run(loop.step, BAD)
        assert not session.should_stop()
        assert session.run(loop.step, 3) == 3  # completed
        assert session.should_stop()
        with pytest.raises(RuntimeError, match="asked to stop"):
            session.run(loop.step)
    assert seen == [True, False] * 2
    assert loop.log == [*START, *FAILED, *RUN, *END]


def test_request_stop_from_outside() -> None:
    with TrainingSession(start_step=100) as session:
        while not session.should_stop():
            session.run(int)
            if session.step == 103:
                session.request_stop()
    assert session.step == 103


def test_what_a_hook_asks_for_is_called_after_the_step() -> None:
    loop = Loop()
    loop.a.fetches = lambda: [*loop.log]
    with loop.session as session:
        session.run(loop.step)
    assert loop.a.values[0].results == [*START, "a.before_run", "b.before_run", "step"]
    assert loop.b.values[0].results is None


def test_run_without_hooks_is_no_step() -> None:
    loop = Loop()
    with loop.session as session:
        assert session.run_without_hooks(loop.step, 4) == 4
        assert session.step == 0
    assert loop.log == [*START, "step", *END]


def test_used_outside_of_its_with() -> None:
    session = TrainingSession()
    with pytest.raises(RuntimeError, match="not entered yet"):
        session.run(int)
    with session:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        session.run_without_hooks(int)
    with pytest.raises(RuntimeError, match="entered once"), session:
        pass


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
