"""How the core in Python is shown what happens: calls of modules, without hooks; passes
that begin; and collections of garbage."""

from __future__ import annotations

import sys
import threading
import warnings
from _thread import get_ident
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from torchprof_hooks.capture.core.python import Hook, hooks_of
from torchprof_hooks.capture.torch_names.autograd import current_graph_task
from torchprof_hooks.capture.torch_names.module_calls import (
    ASKING,
    compiled_implementation_of,
    implementation_of,
    last_question,
    set_compiled_implementation,
)

if TYPE_CHECKING:
    import torch

    from torchprof_hooks.capture.core.python import Cursor


#: The type of a callback in ``gc.callbacks``.
AroundCollection = Callable[[str, dict[str, Any]], None]

#: The generation that a collection of all objects reports.
_FULL: Final = 2


class Seam(property):
    """Shows calls of modules to cursors: where torch looks for a module's compiled
    implementation of calls, it finds one that shows the begin of the call, calls what
    torch would have called, and shows the end. Hooks on all modules would be slower:
    with them, torch takes ten times as long as the native core's seam.

    getter: what torch.compile is to see as the property's getter.
    """

    def __init__(self, getter: Callable[[Any], None]) -> None:
        super().__init__(getter)
        self._shown: tuple[tuple[Cursor, Hook, Hook], ...] = ()
        self._last_question = last_question()

    def show_to(self, cursors: tuple[Cursor, ...]) -> None:
        """Show all calls to these cursors, in this order."""
        self._shown = tuple((cursor, *hooks_of(cursor)) for cursor in cursors)

    def forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Show the begin of a call, where no `__get__` does."""
        for _, pre, _ in self._here():
            pre(module, args)

    def forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """Show the end of a call, where no `__get__` does."""
        for _, _, post in _in_order_of_ends(self._here(ending=id(module))):
            post(module, args, outputs)

    def __get__(self, module: Any, kind: type | None = None) -> Any:
        if module is None:
            return None
        frame = sys._getframe(1)
        if frame.f_code.co_name != ASKING:
            return compiled_implementation_of(module)
        for cursor, _, _ in self._shown:  # of any thread: `_call` sorts them out
            if _is_seen_by(cursor):
                return partial(self._call, module)
        # Torch calls the answer to its last question: not None, even if another thread
        # has emptied `_shown` since torch asked before.
        if frame.f_lasti == self._last_question:
            return implementation_of(module)
        return compiled_implementation_of(module)

    def __set__(self, module: Any, implementation: Any) -> None:
        set_compiled_implementation(module, implementation)

    def __delete__(self, module: Any) -> None:
        set_compiled_implementation(module, None)

    def _here(self, ending: int = -1) -> list[tuple[Cursor, Hook, Hook]]:
        """The cursors that are to see a call that begins in this thread now, or the end
        of a call of the module whose id is `ending`, each with its hooks."""
        here, found = get_ident(), []
        for shown in self._shown:
            cursor = shown[0]
            if cursor.thread != here and not (cursor.passes and cursor.works_here()):
                continue
            if _is_seen_by(cursor) or cursor.site.key == ending:
                found.append(shown)
        return found

    def _call(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        begun: list[tuple[Cursor, Hook, Hook]] = []
        try:
            for each in self._here():
                begun.append(each)
                each[1](module, args)
            outputs = implementation_of(module)(*args, **kwargs)
        except BaseException:
            _show_failed(begun, module, args)
            raise
        _show_end(_in_order_of_ends(begun), module, args, outputs)
        return outputs


def _is_seen_by(cursor: Cursor) -> bool:
    """Whether `cursor` is to see a call that is made now. A call in a backward pass is
    not one from outside, whether or not anybody follows the pass."""
    if not cursor.sees_outer_alone:
        return True
    return cursor.site.is_outer and current_graph_task() == -1


def _in_order_of_ends(
    shown: list[tuple[Cursor, Hook, Hook]],
) -> list[tuple[Cursor, Hook, Hook]]:
    """Cursors with `on_pause` come last: calling it may end the steps of others."""
    return sorted(shown, key=lambda each: each[0].on_pause is not None)


def _show_end(
    shown: list[tuple[Cursor, Hook, Hook]],
    module: torch.nn.Module,
    args: Any,
    outputs: Any,
) -> None:
    """Show the end of a call to all cursors, even if a hook of one raises."""
    for place, (_, _, post) in enumerate(shown):
        try:
            post(module, args, outputs)
        except BaseException:
            _show_failed(shown[place + 1 :], module, args)
            raise


def _show_failed(
    shown: list[tuple[Cursor, Hook, Hook]], module: torch.nn.Module, args: Any
) -> None:
    """Show the end of a call while its exception is handled. Exceptions from hooks
    become warnings: they must not take its place."""
    for _, _, post in _in_order_of_ends(shown):
        try:
            post(module, args, None)
        except Exception as error:
            warnings.warn(f"after a forward has raised: {error!r}", stacklevel=2)


def on_unseen_pass(callback: Callable[[], object] | None) -> None:
    """Have `callback` called when a backward pass begins that was not started from
    Python. Only the native core can: the engine tells it of nodes."""


def seen_pass_begins() -> int:
    """The pass that begins in this thread was started from Python, so it is no unseen
    one. Returns what `seen_pass_ends` is to be given."""
    return 0


def seen_pass_ends(before: int) -> None:
    """The pass that `seen_pass_begins` was called for is over."""


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
