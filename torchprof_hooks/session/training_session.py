"""A training loop whose steps have hooks around them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, ParamSpec, TypeVar

from torchprof_hooks.profiles.options import check_whole
from torchprof_hooks.session.session_hook import (
    RunArgs,
    RunContext,
    RunValues,
    SessionHook,
    fetch,
    occupy,
    release,
)

P = ParamSpec("P")
R = TypeVar("R")

_NEW: Final = "new"
_OPEN: Final = "open"
_CLOSED: Final = "closed"


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
        self._hooks = _checked_hooks(hooks)
        self._step = check_whole("start_step", start_step)
        self._state = _NEW
        self._is_stopping = False
        self._has_told_of_error = False  # of the last step, which has failed

    @property
    def step(self) -> int:
        """How many steps have been run, including those before the session."""
        return self._step

    @property
    def is_using(self) -> bool:
        """Whether the session is open: then nobody else may use its hooks."""
        return self._state is _OPEN

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
            TypeError: a hook asks for something that cannot be called.
        """
        self._check_open()
        if self._is_stopping:
            raise RuntimeError(
                "this session was asked to stop: ask should_stop() before each run()"
            )
        context = RunContext(self, step_fn, args, kwargs)
        self._has_told_of_error = False
        try:
            requests = [hook.before_run(context) for hook in self._hooks]
            value = step_fn(*args, **kwargs)
            self._step += 1
            for hook, request in zip(self._hooks, requests, strict=True):
                hook.after_run(context, self._values(value, request))
        except StopIteration:
            for hook in self._hooks:
                hook.on_stop_iteration(context)
            raise
        except BaseException as error:
            self._has_told_of_error = True
            _tell_all(self._hooks, context, error)
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
        self._leave()
        for position, hook in enumerate(self._hooks, start=1):
            try:
                hook.end(self)
            except BaseException as error:
                _tell_all(self._hooks[position:], None, error)
                raise

    def __enter__(self) -> TrainingSession:
        """Call `begin` and `after_create_session` of all hooks.

        Raises:
            RuntimeError: the session was entered before, or a hook is in use already.
        """
        if self._state is not _NEW:
            raise RuntimeError("a session can be entered once: make a new one")
        occupy(self._hooks, self)
        self._state = _OPEN
        begun: list[SessionHook] = []
        try:
            for hook in self._hooks:
                begun.append(hook)
                hook.begin()
            for hook in self._hooks:
                hook.after_create_session(self)
        except BaseException as error:
            self._leave()
            _tell_all(begun, None, error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        is_normal = error is None or isinstance(error, StopIteration)
        if self._state is _OPEN and is_normal:
            self.close()
        elif self._state is _OPEN and error is not None:
            self._leave()
            # Not if the hooks know already; they may have begun again since.
            if not (self._has_told_of_error and _came_out_of_run(traceback, self)):
                _tell_all(self._hooks, None, error)
        return is_normal

    def _values(self, value: Any, request: RunArgs | None) -> RunValues:
        wanted = None if request is None else request.fetches
        results = None if wanted is None else fetch(wanted)
        return RunValues(value, results, self._step)

    def _check_open(self) -> None:
        if self._state is not _OPEN:
            state = "not entered yet" if self._state is _NEW else "closed"
            raise RuntimeError(f"this session is {state}: use it inside of its `with`")

    def _leave(self) -> None:
        self._state = _CLOSED
        release(self._hooks)


def _checked_hooks(hooks: Iterable[SessionHook]) -> tuple[SessionHook, ...]:
    wanted = "hooks must be SessionHooks, in a list, not"
    if not isinstance(hooks, Iterable):
        raise TypeError(f"{wanted} {hooks!r}")
    found = tuple(hooks)
    for hook in found:
        if not isinstance(hook, SessionHook):
            raise TypeError(f"{wanted} {hook!r}")
    return found


def _came_out_of_run(traceback: TracebackType | None, session: TrainingSession) -> bool:
    # Not by remembering the error: its traceback would keep the step's tensors alive.
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code is _RUN and frame.f_locals.get("self") is session:
            return True
        traceback = traceback.tb_next
    return False


_RUN: Final = TrainingSession.run.__code__


def _tell_all(
    hooks: Iterable[SessionHook], context: RunContext | None, error: BaseException
) -> None:
    with ExitStack() as calls:  # calls each hook, even if one raises
        for hook in reversed(tuple(hooks)):
            calls.callback(hook.on_exception, context, error)
