"""Where function calls are seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from torchprof_hooks.capture.function_tracker import FunctionTracker


class FunctionMode(TorchFunctionMode):
    """Shows a tracker the torch functions that one thread calls.

    torch takes a mode off its stack while the mode handles a call, so a function is
    seen at the level at which the user wrote it, without those that it calls in turn.
    Reads of attributes come here too; most calls that are seen are none of interest.
    """

    def __init__(self, tracker: FunctionTracker) -> None:
        self._tracker = tracker

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # Dynamo traces this, and must find nothing in it but the call.
        if is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        tracker = self._tracker
        try:
            site = tracker.site.functions[func]
        except (KeyError, TypeError):
            site = tracker.find_function(func)
        if site is None:
            return func(*args, **(kwargs or {}))
        return tracker.call(site, func, args, kwargs or {})
