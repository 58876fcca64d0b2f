"""Keeps our hooks on modules out of what torch.compile makes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from torch.utils.hooks import RemovableHandle

from torchprof_hooks.capture.compiler_exemption import exempt_from_compilation
from torchprof_hooks.capture.torch_names.compiler import (
    has_compiled,
    watch_compilations,
)
from torchprof_hooks.capture.torch_names.modules import hide_global_hooks


class CompileShield:
    """Takes hooks on all modules away for as long as torch.compile compiles something.

    If it met them, it would compile again as soon as they are removed, or replaced.
    Nothing that happens meanwhile in its thread is to be measured; calls in others are
    missed.

    has_missed: whether something was compiled with hooks on, before torch.compile could
        be watched.
    """

    def __init__(self) -> None:
        self.has_missed = False
        self._lock = threading.Lock()
        self._is_watching = self._was_unwatched = False
        self._shielded: list[Sequence[RemovableHandle]] = []
        self._show: Callable[[set[int]], None] | None = None

    def add(self, handles: Sequence[RemovableHandle]) -> None:
        """Shield these from now on."""
        with self._lock:
            self._shielded.append(handles)
        self.watch()
        self._was_unwatched = not self._is_watching

    def remove(self, handles: Sequence[RemovableHandle]) -> None:
        """They are about to be removed."""
        with self._lock:
            self._shielded = [other for other in self._shielded if other is not handles]

    def watch(self) -> None:
        """torch.compile may have come into use by now, or forgotten us."""
        exempt_from_compilation()
        self._is_watching = watch_compilations(self._hide, self._show_again)
        if self._is_watching and self._was_unwatched:
            self._was_unwatched = False
            self.has_missed = has_compiled()

    def _hide(self, *compilation: object) -> None:
        with self._lock:
            if self._shielded and self._show is None:
                self._show = hide_global_hooks(self._ids())

    def _show_again(self, *compilation: object) -> None:
        with self._lock:
            show, self._show = self._show, None
            if show is not None:
                show(self._ids())

    def _ids(self) -> set[int]:
        return {handle.id for handles in self._shielded for handle in handles}


#: The one there is.
compile_shield = CompileShield()
