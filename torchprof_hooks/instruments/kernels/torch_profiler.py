"""Watches what programs do with torch's profiler while we may use it: profilers of
their own, and ranges that they mark."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Final

from torchprof_hooks.kernel.attachments import Layer, Patch, attachments
from torchprof_hooks.kernel.torch_names import Function
from torchprof_hooks.kernel.torch_names.profiler import (
    PROFILER_BEGINS,
    PROFILER_ENDS,
    RANGE_BEGINS,
    RANGE_ENDS,
    is_one_prepared,
    is_profiler_active,
)


class OtherProfilers:
    """Knows when profilers that are not ours begin and end, while somebody watches.

    A profiler with a schedule prepares itself some steps before it starts, and nothing
    else says so; and one that starts while ours is running fails, or makes torch
    crash. So this replaces the functions by which profilers prepare, start and end by
    ones that find out whose the call is. Where torch does not have these functions, it
    notices no profilers.

    before_others: called before a profiler that is not ours is prepared or started.
    """

    def __init__(self, before_others: Callable[[], None]) -> None:
        self._is_one_prepared = False
        self._before_others = before_others
        self._own = threading.local()
        self._patches: Final = [
            Patch(place, partial(self._watching, is_end=is_end))
            for is_end, places in ((False, PROFILER_BEGINS), (True, PROFILER_ENDS))
            for place in places
        ]

    def watch(self, user: object) -> None:
        """Watch for as long as `user` lives, or until `unwatch`."""
        is_first = not any(patch.is_used for patch in self._patches)
        for patch in self._patches:
            attachments.attach(patch, user)
        if is_first:  # some may be under way
            self._is_one_prepared = is_one_prepared()

    def unwatch(self, user: object) -> None:
        """Undo `watch`."""
        for patch in self._patches:
            attachments.detach(patch, user)

    @property
    def is_in_use(self) -> bool:
        """Whether a profiler is prepared or running."""
        return self._is_one_prepared or is_profiler_active()

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Profilers that this thread starts and stops inside the block are ours."""
        self._own.is_at_work = True
        try:
            yield
        finally:
            self._own.is_at_work = False

    def _watching(self, function: Function, layer: Layer, *, is_end: bool) -> Function:
        @wraps(function)
        def watching(*args: Any, **kwargs: Any) -> Any:
            if not layer.is_on or getattr(self._own, "is_at_work", False):
                return function(*args, **kwargs)
            if not is_end:
                self._before_others()
            was_prepared, self._is_one_prepared = self._is_one_prepared, True
            try:
                result = function(*args, **kwargs)
            except BaseException:
                self._is_one_prepared = was_prepared
                raise
            self._is_one_prepared = not is_end
            return result

        return watching


class OpenRanges:
    """Ends ranges that are open when a recording ends.

    A range that begins while one session of torch's profiler runs and ends while
    another does makes torch write to memory that it has freed (observed with 2.13: the
    program crashes some time later). A range that is ended early lasts until the end of
    the recording, for torch, and ending it again does nothing.
    """

    def __init__(self) -> None:
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()
        self._patches = (
            Patch(RANGE_BEGINS, self._watched_enter),
            Patch(RANGE_ENDS, self._watched_exit),
        )

    def watch(self, user: object) -> None:
        """A recording is about to begin: watch for as long as `user` lives, or until
        `unwatch`."""
        for patch in self._patches:
            attachments.attach(patch, user)

    def unwatch(self, user: object) -> None:
        """Undo `watch`."""
        for patch in self._patches:
            attachments.detach(patch, user)

    def end(self, user: object) -> None:
        """The recording is about to end: end the ranges that are open."""
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
