"""Ranges that programs mark for torch's profiler, and that outlive a recording."""

from __future__ import annotations

import weakref
from typing import Any, Final

import torch

#: The class of the ranges, and the base of those that libraries derive from it.
_Range: Final[Any] = torch.autograd.profiler.record_function


class OpenRanges:
    """Ends ranges that are open when a recording ends.

    A range that begins while one session of torch's profiler runs and ends while
    another does makes torch write to memory that it has freed (seen with 2.13: the
    program crashes some time later). Ended early, as far as torch is concerned, it
    lasts until the end of the recording, and ending it again does nothing.
    """

    def __init__(self) -> None:
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._enter: Any = None
        self._exit: Any = None

    def watch(self) -> None:
        """A recording is about to begin."""
        opened, enter, leave = self._open, _Range.__enter__, _Range.__exit__

        def watched_enter(marked: Any) -> Any:
            opened.add(marked)  # first: an interrupt may come in between
            return enter(marked)

        def watched_exit(marked: Any, *error: Any) -> Any:
            opened.discard(marked)
            return leave(marked, *error)

        self._enter, self._exit = enter, leave
        self._put(watched_enter, watched_exit)

    def unwatch(self) -> None:
        """Do not look any longer."""
        self._put(self._enter, self._exit)

    def end(self) -> None:
        """It is about to end."""
        self.unwatch()
        for marked in list(self._open):
            if getattr(marked, "record", None) is not None:  # it has begun
                marked.__exit__(None, None, None)
        self._open.clear()

    def _put(self, enter: Any, leave: Any) -> None:
        _Range.__enter__ = enter
        _Range.__exit__ = leave
