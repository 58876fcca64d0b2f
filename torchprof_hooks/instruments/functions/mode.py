"""What notifies hooks with callbacks of functions: a torch-function mode, and for
custom autograd Functions, ``apply``."""

from __future__ import annotations

import sys
import weakref
from _thread import get_ident
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Protocol

from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from torchprof_hooks.kernel.attachments import (
    Attachment,
    Layer,
    Patch,
    attachments,
)
from torchprof_hooks.kernel.torch_names import Function
from torchprof_hooks.kernel.torch_names.functions import (
    OVERRIDE_CHECK,
    FunctionApplications,
    Run,
    function_modes,
    is_default_device_at_work,
    make_builtin,
    push_function_mode,
    remove_function_mode,
)
from torchprof_hooks.kernel.torch_names.modules import frames_from


class Follower(Protocol):
    """Who is notified of functions.

    works_here: whether it follows the running thread.
    called: calls a function that a mode was given.
    follows: whether it wants to be notified of applications of a custom Function.
    applied: calls `run`, which applies a custom Function.
    """

    def works_here(self) -> bool: ...
    def called(self, function: Any, args: Any, kwargs: Any) -> Any: ...
    def follows(self, cls: Any) -> bool: ...
    def applied(self, cls: Any, run: Run, *args: Any, **kwargs: Any) -> Any: ...


class ModeOnStack(Attachment):
    """Keeps a mode on torch's stack that notifies a follower of the functions that this
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
        """Open a mode, unless there is one."""
        follower = self._follower()
        if follower is None or self.mode is not None:
            return
        if is_default_device_at_work():
            raise RuntimeError(
                "a hook on functions cannot begin inside of a function of torch while "
                "torch.set_default_device is in use: enter or add it outside"
            )
        remove_closed_modes()
        mode = self.mode = FunctionMode(follower)
        attachments.attach(_override_patch, mode)
        push_function_mode(mode)

    def resume(self) -> FunctionMode | None:
        """Push the mode again, if it is handling the call that begins a backward pass:
        it is off the stack until that call ends. Returns it if it was pushed."""
        if self.mode is None or self.mode in function_modes():
            return None
        push_function_mode(self.mode)
        return self.mode

    def take_off(self) -> bool:
        """Close the mode. If another thread closes it, if it is handling a call, or if
        its last user is collected as garbage, it stays on the stack, and passes calls
        on until a mode is opened there: torch may be about to take it off for a call.
        """
        if self.mode is not None:
            self.mode.close()
            if get_ident() == self._thread and not attachments.in_finalizer:
                remove_function_mode(self.mode)
                if not _is_handling(self.mode):
                    attachments.detach(_override_patch, self.mode)
            self.mode = None
        return True


class FunctionMode(TorchFunctionMode):
    """Notifies a follower of the torch functions that one thread calls, until `close`.

    torch takes a mode off its stack while the mode handles a call. So the mode is given
    the functions that the user calls, and not those that these call. It is also given
    reads of attributes; most calls that it is given are of no interest.
    """

    def __init__(self, follower: Follower) -> None:
        self._find: Callable[[], Follower | None] = weakref.ref(follower)
        self.is_closed = False

    def close(self) -> None:
        """Notify nobody any more."""
        self._find, self.is_closed = _nobody, True

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Dynamo traces this, and must find nothing in it but the call.
        if is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        follower = self._find()
        if follower is None:
            return func(*args, **(kwargs or {}))
        return follower.called(func, args, kwargs or {})


def _nobody() -> None:
    """A reference to nothing."""


def remove_closed_modes() -> None:
    """Take modes off this thread's stack that torch put back after they were closed."""
    for mode in function_modes():
        if isinstance(mode, FunctionMode) and mode.is_closed:
            remove_function_mode(mode)
            attachments.detach(_override_patch, mode)


def _is_handling(mode: FunctionMode) -> bool:
    """Whether `mode` handles a call at the moment, in this thread: torch will put it
    back on its stack."""
    return any(
        frame.f_code is _HANDLER and frame.f_locals.get("self") is mode
        for frame in frames_from(sys._getframe(1))
    )


_HANDLER: Final = FunctionMode.__torch_function__.__code__


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


#: In place while any mode of ours is open, or comes back; its users are these modes.
_override_patch: Final = Patch(OVERRIDE_CHECK, _make_check)


class Applications(Attachment):
    """Notifies of each application of a custom autograd Function; its users are
    followers."""

    def __init__(self) -> None:
        super().__init__()
        self._applications = FunctionApplications(self._around)

    def put_on(self) -> None:
        self._applications.start()

    def take_off(self) -> bool:
        self._applications.stop()
        return True

    def _around(self, cls: Any, run: Run) -> Run:
        """What is called in place of `run`, which applies `cls`."""
        if not is_dynamo_compiling():
            for follower in self.users_here():
                if follower.follows(cls):
                    run = partial(follower.applied, cls, run)
        return run


applications: Final = Applications()
