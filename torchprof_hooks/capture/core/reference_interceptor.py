"""How the reference core sees calls of modules and collections of garbage: by hooks,
and by Python's callbacks."""

from __future__ import annotations

import sys
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


#: When the full collection that runs began, and the cursors that it interrupts.
_began_ns: Final[list[int]] = []
_interrupted: Final[list[Cursor]] = []


def interrupt_by_collections(cursors: tuple[Cursor, ...]) -> None:
    """From now on, full collections of garbage interrupt the calls that are open in
    these cursors, if the collection is in the thread that a cursor follows."""
    _interrupted[:] = cursors


def around_collection(
    moment: str,
    about: dict[str, Any],
    is_ending: Callable[[], bool] = sys.is_finalizing,
) -> None:
    """For ``gc.callbacks``."""
    if about["generation"] < _FULL or is_ending():  # then, modules are empty
        return
    now_ns = perf_counter_ns()
    if moment == "start":
        _began_ns[:] = [now_ns]
    elif _began_ns:
        began_ns = _began_ns.pop()
        for cursor in _interrupted:
            if cursor.garbage is not None and cursor.works_here():
                cursor.garbage.start_ns = began_ns
                cursor.end_entry(cursor.garbage, now_ns)
