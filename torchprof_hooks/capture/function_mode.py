"""Where function calls are seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

from torchprof_hooks.capture.torch_names.functions import (
    function_modes,
    remove_function_mode,
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

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._tracker is None

    def close(self) -> None:
        """Show nothing any more. Where this is called while the mode handles a call,
        torch puts it back on its stack afterwards, where it passes on what comes until
        `remove_closed_modes`."""
        self._tracker = None
        remove_function_mode(self)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Dynamo traces this, and must find nothing in it but the call.
        if is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        tracker = self._tracker
        if tracker is None:
            return func(*args, **(kwargs or {}))
        try:
            site = tracker.site.functions[func]
        except (KeyError, TypeError):
            site = tracker.find_function(func)
        if site is None:
            tracker.passed_over += 1
            return func(*args, **(kwargs or {}))
        return tracker.call(site, func, args, kwargs or {})


def remove_closed_modes() -> None:
    """Take modes off this thread's stack that torch put back after they were closed."""
    for mode in function_modes():
        if isinstance(mode, FunctionMode) and mode.is_closed:
            remove_function_mode(mode)
