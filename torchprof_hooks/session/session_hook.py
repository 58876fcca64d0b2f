"""Hooks around the steps of a training loop."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torchprof_hooks.session.training_session import TrainingSession


@dataclass(frozen=True, slots=True)
class RunArgs:
    """The functions whose results a hook wants, returned by `SessionHook.before_run`.

    fetches: called without arguments after the step; a function, or a list, tuple or
        dict of functions (also nested).
    """

    fetches: Any = None


@dataclass(frozen=True, slots=True)
class RunValues:
    """The results of a step, given to `SessionHook.after_run`.

    value: the value that the step returned.
    results: what the hook's own fetches returned, in the structure in which they were
        asked for; None if it asked for nothing.
    step: how many steps the session has run by now, this one among them.
    """

    value: Any
    results: Any
    step: int


class RunContext:
    """One run of a step. All hooks get the same object, before and after the step.

    session: the session that runs the step.
    step: how many steps the session has run before this one.
    function, args, kwargs: the function of the step, and its arguments.
    """

    def __init__(
        self,
        session: TrainingSession,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.session = session
        self.step = session.step
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self._stop_requested = False

    @property
    def stop_requested(self) -> bool:
        """Whether a hook called `request_stop` in this run."""
        return self._stop_requested

    def request_stop(self) -> None:
        """Ask the session to stop after this run. The step and the callbacks after it
        are completed first. If any of these raises, the request is dropped."""
        self._stop_requested = True


class SessionHook:
    """Callbacks around the steps of a `TrainingSession`, in the order of its hooks.

    Subclass it and override what you need. The protocol is that of TensorFlow's
    ``SessionRunHook``, for loops in Python: `begin` has no graph to change, and the
    functions that `before_run` returns are called after the step. `on_exception` is
    new.
    """

    def begin(self) -> None:
        """Called when the session is entered, before anything else."""

    def after_create_session(self, session: TrainingSession) -> None:
        """Called after `begin` of all hooks."""

    def before_run(self, run_context: RunContext) -> RunArgs | None:
        """Called before each step. Returns the functions to call after it, or None."""
        return None

    def after_run(self, run_context: RunContext, run_values: RunValues) -> None:
        """Called after each step that did not raise."""

    def on_stop_iteration(self, run_context: RunContext) -> None:
        """Called instead of `after_run` if StopIteration has ended a step. The session
        may go on all the same."""

    def end(self, session: TrainingSession) -> None:
        """Called when the session is left, unless by an exception other than
        StopIteration."""

    def on_exception(
        self, run_context: RunContext | None, error: BaseException
    ) -> None:
        """Called when a step, a hook or the body of the session raises an exception
        other than StopIteration, also while the session begins. Outside of a step,
        `run_context` is None. The exception is raised again afterwards; an exception
        raised here replaces it."""


def fetch(fetches: Any) -> Any:
    """The values of `RunArgs.fetches`, in the same structure.

    Raises:
        TypeError: `fetches` contains something that is not a function.
    """
    if isinstance(fetches, dict):
        return {key: fetch(value) for key, value in fetches.items()}
    if isinstance(fetches, tuple) and hasattr(fetches, "_fields"):
        return type(fetches)(*map(fetch, fetches))
    if isinstance(fetches, (list, tuple)):
        return type(fetches)(map(fetch, fetches))
    if not callable(fetches):
        raise TypeError(f"a hook's fetches must be functions, not {fetches!r}")
    return fetches()


class User(Protocol):
    """Something that uses hooks: a session, or a hook that is entered by itself. A hook
    has one user at a time.

    is_using: whether the user uses its hooks now. This decides, rather than `release`,
        since an interrupt may keep a user from calling that.
    """

    @property
    def is_using(self) -> bool: ...


_lock = threading.Lock()
#: By identity: hooks may be equal without being the same.
_in_use: dict[int, tuple[weakref.ref[SessionHook], weakref.ref[User]]] = {}


def _is_in_use(hook: SessionHook) -> bool:
    if id(hook) not in _in_use:
        return False
    known, user_of_known = _in_use[id(hook)]
    user = user_of_known()
    return known() is hook and user is not None and user.is_using


def occupy(hooks: tuple[SessionHook, ...], user: User) -> None:
    """Take hooks into use.

    Raises:
        RuntimeError: one of the hooks is in use already. Then none is taken.
    """
    with _lock:
        for position, hook in enumerate(hooks):
            is_twice = any(other is hook for other in hooks[:position])
            if is_twice or _is_in_use(hook):
                raise RuntimeError(
                    f"{hook!r} is in use by another session, or twice in this one: "
                    "make a hook for each"
                )
        for hook in hooks:
            _in_use[id(hook)] = weakref.ref(hook), weakref.ref(user)


def release(hooks: tuple[SessionHook, ...]) -> None:
    """Let other sessions use these hooks."""
    with _lock:
        for hook in hooks:
            _in_use.pop(id(hook), None)
