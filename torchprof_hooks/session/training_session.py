"""`TrainingSession`, which runs the steps of a loop with hooks around them, and the
base class of such hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from torchprof_hooks.profiles.options import check_callable, check_whole

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RunArgs:
    """What a hook wants to know after the step, returned by `SessionHook.before_run`.

    fetches: a function, which is called without arguments after the step.
    """

    fetches: Callable[[], Any]

    def __post_init__(self) -> None:
        check_callable("fetches", self.fetches)


@dataclass(frozen=True, slots=True)
class RunValues:
    """The results of a step, given to `SessionHook.after_run`.

    value: the value that the step returned.
    results: what the hook's own `fetches` returned; None if it asked for nothing.
    step: how many steps the session has run by now, with this one.
    """

    value: Any
    results: Any
    step: int


@dataclass(eq=False, slots=True)
class RunContext:
    """One run of a step. All hooks get the same object, before and after the step.

    session: the session that runs the step.
    step: how many steps the session has run before this one.
    function, args, kwargs: the function of the step, and its arguments.
    stop_requested: whether a hook called `request_stop` in this run.
    """

    session: TrainingSession
    step: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    stop_requested: bool = False

    def request_stop(self) -> None:
        """Ask the session to stop after this run. The step and the callbacks after it
        are completed first. If any of these raises, the request is dropped."""
        self.stop_requested = True


class SessionHook:
    """Callbacks around the steps of a `TrainingSession`, in the order of its hooks.

    Subclass it and override what you need. A hook serves one session at a time, which
    nobody checks. The protocol is that of TensorFlow's ``SessionRunHook``, for loops in
    Python: `begin` has no graph to change, and the function that `before_run` returns
    is called after the step. `on_exception` is new.
    """

    def begin(self) -> None:
        """Called when the session is entered, before anything else."""

    def after_create_session(self, session: TrainingSession) -> None:
        """Called after `begin` of all hooks."""

    def before_run(self, run_context: RunContext) -> RunArgs | None:
        """Called before each step. Returns what to call after it, or None."""
        return None

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Called after each step that did not raise."""

    def on_stop_iteration(self, run_context: RunContext) -> None:
        """Called instead of `after_run` if StopIteration has ended a step. The session
        may go on after that."""

    def end(self, session: TrainingSession) -> None:
        """Called when the session is left, unless by an exception other than
        StopIteration."""

    def on_exception(
        self, run_context: RunContext | None, error: BaseException
    ) -> None:
        """Called when a step, a hook or the body of the session raises an exception
        other than StopIteration, also while the session begins. If a step has failed,
        an exception that then leaves the body causes no second call. Outside of a step,
        `run_context` is None. The exception is raised again afterwards; one raised here
        replaces it."""


class TrainingSession:
    """Runs the steps of a training loop with hooks around them.

    The order is that of TensorFlow's ``MonitoredSession``: hooks are always called in
    the order of the list. A StopIteration that leaves the body, for example from an
    exhausted data iterator, is a normal end. After any other exception,
    `SessionHook.on_exception` is called instead of `SessionHook.end`. Unlike
    TensorFlow's, a session never starts again by itself, and calls `end` at most once.

    Args:
        hooks: the hooks to call, in this order.
        start_step: how many steps were run before, when training is resumed.

    Raises:
        TypeError: one of `hooks` is not a `SessionHook`, or `start_step` is not an
            integer.

    Example:
        >>> with TrainingSession([ProfilerHook(save_steps=1000)]) as session:
        ...     for batch in loader:
        ...         session.run(train_step, batch)
    """

    def __init__(self, hooks: Iterable[SessionHook] = (), start_step: int = 0) -> None:
        wanted = "hooks must be SessionHooks, in a list, not"
        if not isinstance(hooks, Iterable):
            raise TypeError(f"{wanted} {hooks!r}")
        self._hooks = tuple(hooks)
        for hook in self._hooks:
            if not isinstance(hook, SessionHook):
                raise TypeError(f"{wanted} {hook!r}")
        self._step = check_whole("start_step", start_step)
        self._state = "not entered yet"
        self._is_stopping = False
        self._has_failed = False  # whether the last step has, which the hooks know

    @property
    def step(self) -> int:
        """How many steps have been run, including those before the session."""
        return self._step

    def should_stop(self) -> bool:
        """Whether a stop was requested."""
        return self._is_stopping

    def request_stop(self) -> None:
        """Ask the session to stop. A step that is running is completed."""
        self._is_stopping = True

    def run(self, step_fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one step, ``step_fn(*args, **kwargs)``, with the hooks around it.

        Returns:
            What the step returned.

        Raises:
            RuntimeError: the session is not entered, or was asked to stop.
        """
        self._check_open()
        if self._is_stopping:
            raise RuntimeError(
                "this session was asked to stop: ask should_stop() before each run()"
            )
        context = RunContext(self, self._step, step_fn, args, kwargs)
        self._has_failed = False
        try:
            requests = [hook.before_run(context) for hook in self._hooks]
            value = step_fn(*args, **kwargs)
            self._step += 1
            for hook, request in zip(self._hooks, requests, strict=True):
                results = request.fetches() if request else None
                hook.after_run(context, RunValues(value, results, self._step))
        except StopIteration:
            for hook in self._hooks:
                hook.on_stop_iteration(context)
            raise
        except BaseException as error:
            self._has_failed = True
            _notify_all(self._hooks, context, error)
            raise
        self._is_stopping = self._is_stopping or context.stop_requested
        return value

    def run_without_hooks(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run ``function(*args, **kwargs)`` without counting it as a step, for example
        an evaluation.

        Raises:
            RuntimeError: the session is not entered.
        """
        self._check_open()
        return function(*args, **kwargs)

    def close(self) -> None:
        """End the session; leaving the ``with`` block then does nothing more.

        If `end` of a hook raises, the hooks after it get `on_exception` instead.
        """
        self._check_open()
        self._state = "closed"
        for position, hook in enumerate(self._hooks, start=1):
            try:
                hook.end(self)
            except BaseException as error:
                _notify_all(self._hooks[position:], None, error)
                raise

    def __enter__(self) -> TrainingSession:
        """Call `begin` and `after_create_session` of all hooks.

        Raises:
            RuntimeError: the session was entered before.
        """
        if self._state != "not entered yet":
            raise RuntimeError("a session can be entered once: make a new one")
        self._state = "open"
        begun: list[SessionHook] = []
        try:
            for hook in self._hooks:
                begun.append(hook)
                hook.begin()
            for hook in self._hooks:
                hook.after_create_session(self)
        except BaseException as error:
            self._state = "closed"
            _notify_all(begun, None, error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        is_normal = error is None or isinstance(error, StopIteration)
        if self._state != "open":
            return is_normal
        if is_normal:
            self.close()
        self._state = "closed"
        if error is not None and not is_normal and not self._has_failed:
            _notify_all(self._hooks, None, error)
        return is_normal

    def _check_open(self) -> None:
        if self._state != "open":
            raise RuntimeError(
                f"this session is {self._state}: use it inside of its `with`"
            )


def _notify_all(
    hooks: Iterable[SessionHook], context: RunContext | None, error: BaseException
) -> None:
    with ExitStack() as calls:  # calls each hook, even if one raises
        for hook in reversed(tuple(hooks)):
            calls.callback(hook.on_exception, context, error)
