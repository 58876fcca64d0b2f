"""A hook that writes down its callbacks, and a clock that stands still."""

from __future__ import annotations

from typing import Any

from torchprof_hooks import RunArgs, RunContext, RunValues, SessionHook, TrainingSession


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Recorder(SessionHook):
    """Appends ``"a.before_run"`` and the like to a log that several hooks share.

    does: what to raise, or to call, in a callback, by its name in the log.
    """

    def __init__(self, name: str, log: list[str], does: dict[str, Any]) -> None:
        self.name = name
        self.log = log
        self.does = does
        self.values: list[RunValues] = []
        self.contexts: list[RunContext] = []
        self.errors: list[tuple[RunContext | None, BaseException]] = []
        self.fetches: Any = None

    def note(self, callback: str, subject: Any = None) -> None:
        called = f"{self.name}.{callback}"
        self.log.append(called)
        does = self.does.get(called)
        if isinstance(does, BaseException):
            raise does
        if does:
            does(subject)

    def begin(self) -> None:
        self.note("begin")

    def after_create_session(self, session: TrainingSession) -> None:
        self.note("after_create_session", session)

    def before_run(self, run_context: RunContext) -> RunArgs | None:
        self.contexts.append(run_context)
        self.note("before_run", run_context)
        return None if self.fetches is None else RunArgs(self.fetches)

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        self.contexts.append(run_context)
        self.values.append(run_values)
        self.note("after_run", run_context)

    def end(self, session: TrainingSession) -> None:
        self.note("end", session)

    def on_exception(
        self, run_context: RunContext | None, error: BaseException
    ) -> None:
        self.errors.append((run_context, error))
        self.note("on_exception", run_context)


START = ["a.begin", "b.begin", "a.after_create_session", "b.after_create_session"]
RUN = ["a.before_run", "b.before_run", "step", "a.after_run", "b.after_run"]
TOLD = ["a.on_exception", "b.on_exception"]
END = ["a.end", "b.end"]
