"""How the reference core sees calls of modules and collections of garbage."""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import Any, Final

import torch

from torchprof_hooks.capture.core.reference import Cursor
from torchprof_hooks.capture.torch_names.module_calls import IMPLEMENTATION, is_asking

#: The generation that a collection of all objects reports.
_FULL: Final = 2


class Interceptor(property):
    """Shows calls of modules to cursors. It takes the place of the attribute that torch
    calls, if it is not None, in place of a module's own implementation of calls.

    It is a property whose getter returns None: this is what torch.compile and
    torch.export trace, and so they make the same with and without it.
    """

    def __init__(self, getter: Callable[[Any], None]) -> None:
        super().__init__(getter)
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

    def __get__(self, module: Any, kind: type | None = None) -> Any:
        if module is None:
            return None
        is_wanted = self._watcher is not None or any(map(_works_here, self._shown))
        if is_wanted and is_asking(sys._getframe(1)):
            return partial(self._call, module)
        return _held(module).get(IMPLEMENTATION)

    def __set__(self, module: Any, value: Any) -> None:
        _held(module)[IMPLEMENTATION] = value

    def __delete__(self, module: Any) -> None:
        if IMPLEMENTATION not in _held(module):
            raise AttributeError(IMPLEMENTATION)
        del _held(module)[IMPLEMENTATION]

    def _call(self, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        begun: list[Cursor] = []
        try:
            self._begin(begun, module, args)
            outputs = _implementation(module)(*args, **kwargs)
        except BaseException as error:
            _end(begun, module, args, None)
            if error.__traceback__ is not None:  # without our frame
                error.__traceback__ = error.__traceback__.tb_next
            raise
        _end(begun, module, args, outputs)
        return outputs

    def _begin(self, begun: list[Cursor], module: torch.nn.Module, args: Any) -> None:
        """Show the begin of a call to cursors, which then are in `begun`."""
        if self._watcher is not None:
            self._watcher(module, args)
        for cursor in filter(_works_here, self._shown):
            begun.append(cursor)
            cursor.forward_pre(module, args)

    def forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Show the begin of a block of code that counts as a call."""
        self._begin([], module, args)

    def forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """Show the end of such a block."""
        _end([*filter(_works_here, self._shown)], module, args, outputs)


_works_here: Final = operator.methodcaller("works_here")


def _held(module: Any) -> dict[str, Any]:
    """The attributes of `module`, read without code of its class."""
    held: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return held


def _implementation(module: Any) -> Callable[..., Any]:
    """What torch would call without us."""
    own: Callable[..., Any] | None = _held(module).get(IMPLEMENTATION)
    return module._call_impl if own is None else own


def _end(begun: list[Cursor], module: Any, args: Any, outputs: Any) -> None:
    """Show the end of a call to all cursors, even if one raises. Those with `on_pause`
    come last: calling it may end the steps of others."""
    raised: BaseException | None = None
    for cursor in sorted(begun, key=_has_pause):
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
