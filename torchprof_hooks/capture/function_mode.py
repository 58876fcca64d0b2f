"""Where function calls are seen."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from torchprof_hooks.capture.torch_names.functions import (
    function_modes,
    install_override_check,
    make_override_check,
    push_function_mode,
    remove_function_mode,
    uninstall_override_check,
)

if TYPE_CHECKING:
    from torchprof_hooks.capture.function_tracker import FunctionTracker


class FunctionMode(TorchFunctionMode):
    """Shows a tracker the torch functions that one thread calls, until `close`.

    torch takes a mode off its stack while the mode handles a call, so a function is
    seen at the level at which the user wrote it, without those that it calls in turn.
    Reads of attributes come here too; most calls that are seen are none of interest.
    """

    def __init__(self, tracker: FunctionTracker) -> None:
        self._tracker: FunctionTracker | None = tracker
        remove_closed_modes()
        _override_check.acquire()
        push_function_mode(self)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._tracker is None

    def close(self) -> None:
        """Show nothing any more."""
        self._tracker = None
        remove_function_mode(self)
        remove_closed_modes()
        _override_check.release()
        if _is_handling(self):
            _remove_afterwards(self)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Dynamo traces this, and must find nothing in it but the call.
        if is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        tracker = self._tracker
        if tracker is None:
            return func(*args, **(kwargs or {}))
        caller = tracker.site
        try:
            site = caller.functions[func]
        except (KeyError, TypeError):
            site = tracker.find_function(func)
        if site is None:
            caller.passed_over += 1
            return func(*args, **(kwargs or {}))
        return tracker.call(site, func, args, kwargs or {})


def remove_closed_modes() -> bool:
    """Take modes off this thread's stack that torch put back after they were closed.
    Whether there were any."""
    closed = [
        m for m in function_modes() if isinstance(m, FunctionMode) and m.is_closed
    ]
    for mode in closed:
        remove_function_mode(mode)
    return bool(closed)


def hide_modes() -> list[FunctionMode]:
    """Take ours off this thread's stack, for `show_modes` to put back."""
    modes = [mode for mode in function_modes() if isinstance(mode, FunctionMode)]
    for mode in modes:
        remove_function_mode(mode)
    return modes


def show_modes(modes: Sequence[FunctionMode]) -> None:
    """Undo `hide_modes`, but for those that were closed meanwhile."""
    for mode in reversed(modes):
        if not mode.is_closed:
            push_function_mode(mode)


def _is_handling(mode: FunctionMode) -> bool:
    """Whether `mode` handles a call at the moment, in this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _HANDLER and frame.f_locals.get("self") is mode:
            return True
        frame = frame.f_back
    return False


#: How many events after its call a mode may take to come back, about.
_EVENTS_AFTER_CALL: Final = 100
_HANDLER: Final = FunctionMode.__torch_function__.__code__


def _remove_afterwards(mode: FunctionMode) -> None:
    """`mode` was closed while it handles a call; when that is over, torch will put it
    back on its stack. Only the interpreter can tell us when: by its hook for profilers,
    if that is free. Otherwise the mode passes calls on until the next one is opened."""
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


class _OverrideCheck:
    """Is in place while any mode of ours is open (see `make_override_check`)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._check = make_override_check(_is_ours)  # the same one at all times

    def acquire(self) -> None:
        """Count one user more."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                install_override_check(self._check)

    def release(self) -> None:
        """Count one user less."""
        with self._lock:
            self._users -= 1
            if not self._users:
                uninstall_override_check(self._check)


def _is_ours(mode: TorchFunctionMode) -> bool:
    return isinstance(mode, FunctionMode)


_override_check = _OverrideCheck()
