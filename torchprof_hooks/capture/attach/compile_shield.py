"""Keeps our hooks on modules out of what torch.compile makes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from torchprof_hooks.capture.attach.attachments import Attachment, attachments
from torchprof_hooks.capture.attach.compilations import compilations
from torchprof_hooks.capture.attach.compiler_exemption import exempt_from_compilation
from torchprof_hooks.capture.attach.module_hooks import ModuleHooks
from torchprof_hooks.capture.attach.patch import Layer, Patch
from torchprof_hooks.capture.torch_names.compiler import (
    has_compiled,
    unwatch_compilations,
    watch_compilations,
)
from torchprof_hooks.capture.torch_names.hook_tables import (
    check_for_global_hooks,
    has_other_global_hooks,
    hide_global_hooks,
)
from torchprof_hooks.capture.torch_names.place import Function


class CompileShield(Attachment):
    """Takes hooks on all modules away for as long as torch.compile compiles something;
    its users are `ModuleHooks`.

    If it met them, it would compile again as soon as they are removed, or replaced.
    Nothing that happens meanwhile in its thread is to be measured; calls in others are
    missed.

    has_missed: whether something was compiled with hooks on, before torch.compile could
        be watched.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_missed = False
        self._lock = threading.RLock()
        self._is_watching = self._was_unwatched = False
        self._show: Callable[[set[int]], None] | None = None
        self._callbacks = self._hide, self._show_again

    def watch(self) -> None:
        """torch.compile may have come into use by now, or forgotten us."""
        exempt_from_compilation()
        attachments.renew(self)
        attachments.renew(compilations)

    def put_on(self) -> None:
        """Be told when torch.compile begins and ends, if it is in use."""
        exempt_from_compilation()
        self._is_watching = watch_compilations(*self._callbacks)
        if self._is_watching and self._was_unwatched:
            self._was_unwatched = False
            self.has_missed = has_compiled()
        elif not self._is_watching:
            self._was_unwatched = True

    def take_off(self) -> bool:
        """Do not be told any more."""
        unwatch_compilations(*self._callbacks)
        self._show = None  # there is nothing to show
        self._is_watching = self._was_unwatched = False
        return True

    def _hide(self, *compilation: object) -> None:
        with self._lock:
            if self.is_used and self._show is None:
                self._show = hide_global_hooks(self._numbers())

    def _show_again(self, *compilation: object) -> None:
        with self._lock:
            show, self._show = self._show, None
            if show is not None:
                show(self._numbers())

    def _numbers(self) -> set[int]:
        hooks = [user for user in self.users if isinstance(user, ModuleHooks)]
        return {number for pair in hooks for number in pair.numbers}


def _make_check(original: Function, layer: Layer) -> Function:
    def has_hooks_of_others() -> bool:
        if not layer.is_on:
            return bool(original())
        users = hushed_warning.users
        ours = {n for user in users for n in user.numbers}
        return has_other_global_hooks(ours)

    return has_hooks_of_others


#: The one shield there is.
compile_shield: Final = CompileShield()

#: torch.compile warns its users when hooks on all modules fire for a compiled module as
#: well. Ours know how to deal with that: while they are there, it hears of those of
#: others. A filter of Python's would not do: whoever catches warnings copies them, and
#: puts them back. Its users are `ModuleHooks`.
hushed_warning: Final = Patch(check_for_global_hooks, _make_check)
