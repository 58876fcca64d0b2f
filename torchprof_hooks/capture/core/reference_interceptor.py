"""How the reference core sees calls of modules and collections of garbage: by hooks,
and by Python's callbacks. It does not see passes that Python has not started."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.core.reference import Cursor

#: The generation that a collection of all objects reports.
_FULL: Final = 2


class Interceptor:
    """Shows calls of modules to cursors: a pair of hooks on all modules."""

    def __init__(self, getter: object = None) -> None:
        self._shown: tuple[Cursor, ...] = ()
        self._watcher: Callable[[torch.nn.Module, Any], object] | None = None

    def show_to(
        self,
        cursors: tuple[Cursor, ...],
        watcher: Callable[[torch.nn.Module, Any], object] | None = None,
    ) -> None:
        """Show all calls to these cursors, in this order.

        watcher: called before each call; cursors that it adds see the call.
        """
        self._shown, self._watcher = cursors, watcher

    def forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Show the begin of a call."""
        if is_dynamo_compiling():
            return
        if self._watcher is not None:
            self._watcher(module, args)
        for cursor in self._shown:
            cursor.forward_pre(module, args)

    def forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """Show the end of a call to all cursors, even if one raises. Those with
        `on_pause` come last: calling it may end the steps of others."""
        if is_dynamo_compiling():
            return
        raised: BaseException | None = None
        for cursor in sorted(self._shown, key=_has_pause):
            try:
                cursor.forward_post(module, args, outputs)
            except BaseException as error:
                if raised is not None:
                    warnings.warn(f"after a hook has raised: {error!r}", stacklevel=2)
                raised = raised or error
        if raised is not None:
            raise raised


def _has_pause(cursor: Cursor) -> bool:
    return cursor.on_pause is not None


def carry_no_ended() -> None:
    """Take passes that have ended off this thread: the native core has torch carry them
    into the engine's threads."""


#: The type of a callback in ``gc.callbacks``.
AroundCollection = Callable[[str, dict[str, Any]], None]


def around_collections(told: Callable[[int], object]) -> AroundCollection | None:
    """A callback for ``gc.callbacks`` that calls `told` at the end of each full
    collection, with the nanoseconds that it took.

    None with several threads before Python 3.12: a collection may begin there while
    torch iterates over its hooks, and a callback in Python lets other threads run. If
    one of them changes the hooks, torch raises an error. The native core's callback
    lets no thread run; it tells of collections in the main thread alone there.
    """
    if sys.version_info < (3, 12) and threading.active_count() > 1:
        return None
    began_ns = 0  # no begin was seen yet

    def around_collection(moment: str, about: dict[str, Any]) -> None:
        nonlocal began_ns
        if about["generation"] < _FULL:
            return
        if moment == "start":
            began_ns = perf_counter_ns()
        elif began_ns:
            told(perf_counter_ns() - began_ns)

    return around_collection
