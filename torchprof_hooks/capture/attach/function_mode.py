"""What shows functions to hooks with callbacks: a torch-function mode, and for custom
autograd Functions, ``apply``."""

from __future__ import annotations

import sys
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable
from functools import partial, wraps
from types import FrameType
from typing import Any, Final, Protocol

from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from torchprof_hooks.capture.attach.attachments import (
    Attachment,
    Layer,
    Patch,
    attachments,
)
from torchprof_hooks.capture.torch_names.custom_functions import (
    Around,
    FunctionApplications,
    Run,
)
from torchprof_hooks.capture.torch_names.functions import (
    OVERRIDE_CHECK,
    RETURN_OF_MODES,
    function_modes,
    is_default_device_at_work,
    make_builtin,
    push_function_mode,
    remove_function_mode,
)
from torchprof_hooks.capture.torch_names.modules import frames_from
from torchprof_hooks.capture.torch_names.place import Function


class Follower(Protocol):
    """Who is shown functions."""

    def works_here(self) -> bool:
        """Whether it follows the running thread."""

    def shown(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call a function that a mode was given."""

    def sees(self, cls: Any) -> bool:
        """Whether it wants to see an application of this custom Function."""

    def applied(self, cls: Any, run: Run, *args: Any, **kwargs: Any) -> Any:
        """Call `run`, which applies `cls`."""


class ModeOnStack(Attachment):
    """Keeps a mode on torch's stack that shows a follower the functions that this
    thread calls. Its users are those who want that.

    Each time, it puts a new mode on the stack: the old one may have been taken off
    while it handled a call, and then torch will put that back.
    """

    def __init__(self, follower: Follower) -> None:
        super().__init__()
        self._follower = weakref.ref(follower)
        self._thread = get_ident()
        self.mode: FunctionMode | None = None

    def put_on(self) -> None:
        """Open a mode, unless there is one. If the default device's mode is handling a
        call, open it when that mode is back on the stack."""
        follower = self._follower()
        if follower is None or self.mode is not None:
            return
        if is_default_device_at_work():
            attachments.attach(_returns_patch, self)
            return
        attachments.detach(_returns_patch, self)
        remove_closed_modes()
        mode = self.mode = FunctionMode(follower)
        attachments.attach(_override_patch, mode)
        push_function_mode(mode)

    def mode_returned(self) -> None:
        """A mode is back on the stack of the running thread: maybe the one that
        `put_on` waits for."""
        if get_ident() == self._thread:
            attachments.renew(self)

    def resume(self) -> FunctionMode | None:
        """Push the mode again, if it is handling the call that begins a backward pass:
        it is off the stack until that call ends. Returns it if it was pushed."""
        if self.mode is None or self.mode in function_modes():
            return None
        push_function_mode(self.mode)
        return self.mode

    def take_off(self) -> bool:
        """Close the mode. Only its own thread can take it off the stack. If another
        thread closes it, it stays there, and passes calls on until a mode is opened."""
        attachments.detach(_returns_patch, self)
        if self.mode is not None:
            self.mode.close()
            if get_ident() == self._thread:
                remove_function_mode(self.mode)
                remove_closed_modes()
                if _is_handling(self.mode):
                    _remove_afterwards(self.mode)
            attachments.detach(_override_patch, self.mode)
            self.mode = None
        return True


class FunctionMode(TorchFunctionMode):
    """Shows a follower the torch functions that one thread calls, until `close`.

    torch takes a mode off its stack while the mode handles a call. So the mode sees the
    functions that the user calls, and not those that they call in turn. It also sees
    reads of attributes; most calls that it sees are of no interest.
    """

    def __init__(self, follower: Follower) -> None:
        self._call: Callable[..., Any] | None = _shown_to(follower)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._call is None

    def close(self) -> None:
        """Show nothing any more."""
        self._call = None

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Dynamo traces this, and must find nothing in it but the call.
        if is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        call = self._call
        if call is None:
            return func(*args, **(kwargs or {}))
        return call(func, args, kwargs)


def remove_closed_modes() -> bool:
    """Take modes off this thread's stack that torch put back after they were closed.
    Returns whether there were any."""
    closed = [
        m for m in function_modes() if isinstance(m, FunctionMode) and m.is_closed
    ]
    for mode in closed:
        remove_function_mode(mode)
    return bool(closed)


def _shown_to(follower: Follower) -> Callable[..., Any]:
    """What calls a function, and shows it to the follower while that lives."""
    find = weakref.ref(follower)

    def call(function: Any, args: Any, kwargs: Any) -> Any:
        living = find()
        if living is None:
            return function(*args, **(kwargs or {}))
        return living.shown(function, args, kwargs or {})

    return call


def _is_handling(mode: FunctionMode) -> bool:
    """Whether `mode` handles a call at the moment, in this thread."""
    return any(
        frame.f_code is _HANDLER and frame.f_locals.get("self") is mode
        for frame in frames_from(sys._getframe(1))
    )


#: After about so many events, we do not wait any more for a mode to come back.
_EVENTS_AFTER_CALL: Final = 100
_HANDLER: Final = FunctionMode.__torch_function__.__code__


def _remove_afterwards(mode: FunctionMode) -> None:
    """Remove `mode`, which was closed while it handles a call, when torch has put it
    back on its stack. Only the interpreter's hook for profilers tells us when that is.
    If the hook is not free, the mode passes calls on until the next one is opened."""
    if sys.getprofile() is not None:
        return

    events_left = _EVENTS_AFTER_CALL

    def at_event(frame: FrameType, event: str, argument: object) -> None:
        nonlocal events_left
        is_over = not _is_handling(mode)
        events_left -= is_over
        if (remove_closed_modes() and is_over) or not events_left:
            sys.setprofile(None)

    sys.setprofile(at_event)


def _make_check(original: Function, layer: Layer) -> Function:
    """Hides our modes from those of torch's own modules that take a slower way, with
    other results, while any mode is active."""

    def has_torch_function(args: Iterable[Any]) -> Any:
        if is_dynamo_compiling() or not layer.is_on:
            return original(args)
        modes = function_modes()
        if not modes or not all(isinstance(mode, FunctionMode) for mode in modes):
            return original(args)
        for mode in modes:
            remove_function_mode(mode)
        try:
            return original(args)
        finally:
            for mode in reversed(modes):
                push_function_mode(mode)

    make_builtin(has_torch_function, original)
    return has_torch_function


#: In place while any mode of ours is open; its users are these modes.
_override_patch: Final = Patch(OVERRIDE_CHECK, _make_check)


def _make_push(original: Function, layer: Layer) -> Function:
    @wraps(original)
    def push_mode(mode: Any) -> Any:
        result = original(mode)
        if layer.is_on:
            for waiting in _returns_patch.users:
                waiting.mode_returned()
        return result

    return push_mode


#: In place while a mode of ours waits for the default device's mode to come back, which
#: has to be below ours; its users are the `ModeOnStack`s that wait.
_returns_patch: Final = Patch(RETURN_OF_MODES, _make_push)


class Applications(Attachment):
    """Sees each application of a custom autograd Function; its users are followers."""

    def __init__(self) -> None:
        super().__init__()
        self._applications = FunctionApplications(self._around)

    def put_on(self) -> None:
        self._applications.start()

    def take_off(self) -> bool:
        self._applications.stop()
        return True

    def _around(self, cls: Any) -> Around | None:
        """What is called around an application of `cls`, if anybody wants to see it."""
        if is_dynamo_compiling():
            return None
        followers = [f for f in self.trackers_here() if f.sees(cls)]
        return partial(_around, cls, followers) if followers else None


def _around(cls: Any, followers: list[Follower], run: Run) -> Run:
    for follower in followers:
        run = partial(follower.applied, cls, run)
    return run


#: The one there is.
applications: Final = Applications()
