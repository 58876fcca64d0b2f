"""Tells trackers when a program waits for data."""

from __future__ import annotations

import threading
import weakref
from functools import wraps
from typing import Any, NamedTuple

from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.owning_tracker import OwningTracker
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.torch_names.compiler import is_tracing
from torchprof_hooks.capture.torch_names.data import (
    ENTRANCES,
    Entrance,
    Method,
    replace_entrance,
    restore_entrance,
)
from torchprof_hooks.capture.tracebacks import leave_out_our_frame


class _Replaced(NamedTuple):
    """What is in place of a method of torch, and what was there."""

    entrance: Entrance
    ours: Method
    original: Method


class DataEntry:
    """Where a loop makes an iterator over a ``DataLoader`` and asks it for batches.

    torch has no hooks for that, so while any tracker listens, the methods that every
    loader ends up in are replaced by ones that tell the trackers of the running thread
    and then do the same.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # see `BackwardEntry`
        self._trackers: tuple[weakref.ref[OwningTracker], ...] = ()
        self._replaced: tuple[_Replaced, ...] = ()

    def add(self, tracker: OwningTracker) -> None:
        """Tell `tracker` from now on."""
        with self._lock:
            reference = weakref.ref(tracker, lambda _: self.remove(None))
            self._trackers = (*self._trackers, reference)
            if not self._replaced:
                for entrance in ENTRANCES:
                    self._replace(entrance)

    def remove(self, tracker: OwningTracker | None) -> None:
        """Forget `tracker`, and those that are gone."""
        with self._lock:
            self._trackers = tuple(
                reference
                for reference in self._trackers
                if reference() is not None and reference() is not tracker
            )
            if not self._trackers:
                replaced, self._replaced = self._replaced, ()
                for method in replaced:
                    restore_entrance(*method)

    def _replace(self, entrance: Entrance) -> None:
        made: list[Method] = []

        def make(original: Method) -> Method:
            made.append(self._make(entrance, original))
            return made[0]

        original = replace_entrance(entrance, make)
        if original is not None:
            method = _Replaced(entrance, made[0], original)
            self._replaced = (*self._replaced, method)

    def _make(self, entrance: Entrance, original: Method) -> Method:
        @wraps(original)
        def load_measured(source: Any, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or is_tracing():
                return original(source, *args, **kwargs)
            begun: list[tuple[OwningTracker, Site]] = []
            try:
                for tracker in self._trackers_here():
                    site = tracker.begin_loading(source, entrance.gives_batches)
                    if site is not None:
                        begun.append((tracker, site))
                loaded = original(source, *args, **kwargs)
            except BaseException as error:
                for tracker, site in reversed(begun):
                    tracker.loading_failed(site, error)
                leave_out_our_frame(error)
                raise
            for tracker, site in reversed(begun):
                tracker.end_loading(site, loaded)
            return loaded

        return load_measured

    def _trackers_here(self) -> list[OwningTracker]:
        living = (reference() for reference in self._trackers)
        return [t for t in living if t is not None and t.works_here()]


#: The one entry there is.
data_entry = DataEntry()
