"""Ranges that programs mark for torch's profiler, and that outlive a recording."""

from __future__ import annotations

import weakref
from typing import Any

from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.patch import Layer, Patch
from torchprof_hooks.capture.torch_names.place import Function
from torchprof_hooks.capture.torch_names.profiler import begin_range, end_range


class OpenRanges:
    """Ends ranges that are open when a recording ends.

    A range that begins while one session of torch's profiler runs and ends while
    another does makes torch write to memory that it has freed (seen with 2.13: the
    program crashes some time later). Ended early, as far as torch is concerned, it
    lasts until the end of the recording, and ending it again does nothing.
    """

    def __init__(self) -> None:
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._patches = (
            Patch(begin_range, self._watched_enter),
            Patch(end_range, self._watched_exit),
        )

    def watch(self, user: object) -> None:
        """A recording is about to begin: look for as long as `user` lives, or until
        `unwatch`."""
        for patch in self._patches:
            attachments.attach(patch, user)

    def unwatch(self, user: object) -> None:
        """Do not look any longer."""
        for patch in self._patches:
            attachments.detach(patch, user)

    def end(self, user: object) -> None:
        """It is about to end."""
        self.unwatch(user)
        for marked in list(self._open):
            if getattr(marked, "record", None) is not None:  # it has begun
                marked.__exit__(None, None, None)
        self._open.clear()

    def _watched_enter(self, enter: Function, layer: Layer) -> Function:
        opened = self._open

        def watched_enter(marked: Any) -> Any:
            if layer.is_on:
                opened.add(marked)  # first: an interrupt may come in between
            return enter(marked)

        return watched_enter

    def _watched_exit(self, leave: Function, layer: Layer) -> Function:
        opened = self._open

        def watched_exit(marked: Any, *error: Any) -> Any:
            opened.discard(marked)
            return leave(marked, *error)

        return watched_exit
