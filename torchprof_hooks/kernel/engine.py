"""Tells trackers when a backward pass begins and ends.

We replace the function by which Python enters the engine, and do not look at outputs of
modules. So we find all nodes, whatever outputs look like (objects of the user's own, a
loss left behind as an attribute), and know when a pass begins and ends.
"""

from __future__ import annotations

from typing import Any, Final

from torch.compiler import is_dynamo_compiling

from torchprof_hooks.kernel.attachments import Layer, Patch
from torchprof_hooks.kernel.core import carry_no_ended
from torchprof_hooks.kernel.passes import PassRequest
from torchprof_hooks.kernel.torch_names.autograd import engine_entry
from torchprof_hooks.kernel.torch_names.compiler import (
    is_compiled_autograd_on,
    is_tracing,
)
from torchprof_hooks.kernel.torch_names.place import Function


class EnginePatch(Patch):
    """Where Python enters the autograd engine; its users are trackers, or have what a
    `Tracker` has for passes.

    torch has no hook for that. So while there are users, this replaces the function
    through which Python enters the engine by one that notifies them and then does the
    same.
    """

    def __init__(self) -> None:
        super().__init__(engine_entry, self._make_entry)

    def _make_entry(self, run_backward: Function, layer: Layer) -> Function:
        def run_measured_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if (
                is_dynamo_compiling()
                or not layer.is_on
                or is_tracing()
                or is_compiled_autograd_on()
            ):
                return run_backward(outputs, *args, **kwargs)
            begun: list[tuple[Any, int]] = []
            results: Any = None
            failed = True
            try:
                for tracker in self.users_here():
                    begun.append((tracker, len(tracker.passes)))
                    tracker.begin_pass(PassRequest(outputs, *args))
                results = run_backward(outputs, *args, **kwargs)
                failed = False
                return results
            finally:
                if begun:
                    _end(begun, results, failed)

        return run_measured_backward


def _end(begun: list[tuple[Any, int]], results: Any, failed: bool) -> None:
    """Tell each tracker that its pass is over, even if a hook of one raises."""
    tracker, passes_before = begun.pop()
    try:
        if len(tracker.passes) > passes_before:
            tracker.end_pass(results, failed)
    finally:
        if begun:
            _end(begun, results, failed)
        elif not passes_before:  # the outermost is over, for all trackers
            carry_no_ended()  # a hook may have stopped measuring in it


#: The one there is.
engine_patch: Final = EnginePatch()
