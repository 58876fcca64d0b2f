"""Tells trackers when a program waits for data."""

from __future__ import annotations

import sys
from functools import wraps
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.attach.attachments import Layer, Patch, leave_out_our_frame
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.torch_names.checkpoints_and_loaders import (
    LOADER_METHODS,
    LoaderMethod,
)
from torchprof_hooks.capture.torch_names.compiler import is_tracing
from torchprof_hooks.capture.torch_names.modules import frames_from
from torchprof_hooks.capture.torch_names.place import Function
from torchprof_hooks.profiles.names import DATA_NAME

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.tracker import Tracker


def begin_loading(tracker: Tracker, source: object, gives_batch: bool) -> Site | None:
    """Begin to wait for `source`: an iterator over batches, or a loader that makes one.
    None if this is a part of other loading: a data set may load from another."""
    tracker.close_left_entries()
    if tracker.site.phase == "data":
        if _loads_on_stack() > 1:
            return None
        tracker.abort_call(tracker.last_stamp_ns())  # an interrupt has left it
    site = tracker.entry_site(DATA_NAME, "data", id(source))
    if not gives_batch:
        site = tracker.tree.uncounted(site)
    site.is_loading = not tracker.follows_loading
    tracker.open_entry(site)
    return site


def end_loading(tracker: Tracker, site: Site, loaded: object) -> None:
    """End the wait at `site`: the data is there."""
    tracker.leave_entry(site, loaded)
    tracker.fold_if_due()


def loading_failed(tracker: Tracker, site: Site, error: BaseException) -> None:
    """End the wait at `site` where loading has raised. If there are no more batches,
    the wait is not counted as a call, but its time is booked all the same."""
    now_ns = perf_counter_ns()
    if not isinstance(error, StopIteration):
        tracker.leave_failed(site, now_ns)
    elif tracker.returns_to(site, now_ns):
        tracker.site = tracker.tree.uncounted(site)
        tracker.close_entry(tracker.site)


def _loads_on_stack() -> int:
    """How many loads are on this thread's Python stack, with the one that begins."""
    frames = frames_from(sys._getframe(1))
    return sum(
        frame.f_code.co_name == "load_measured" and frame.f_globals is globals()
        for frame in frames
    )


class LoaderPatch(Patch):
    """Where a loop makes an iterator over a ``DataLoader``, or asks it for batches; its
    users are trackers.

    torch has no hooks for that. So while there are users, this replaces the method that
    every loader ends up in by one that tells the trackers of the running thread and
    then does the same.
    """

    def __init__(self, method: LoaderMethod) -> None:
        super().__init__(method.find, self._make_method)
        self._gives_batches = method.gives_batches

    def _make_method(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def load_measured(source: Any, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or is_tracing() or not layer.is_on:
                return original(source, *args, **kwargs)
            begun: list[tuple[Tracker, Site]] = []
            try:
                for tracker in self.trackers_here():
                    site = begin_loading(tracker, source, self._gives_batches)
                    if site is not None:
                        begun.append((tracker, site))
                loaded = original(source, *args, **kwargs)
            except BaseException as error:
                for tracker, site in reversed(begun):
                    loading_failed(tracker, site, error)
                leave_out_our_frame(error)
                raise
            for tracker, site in reversed(begun):
                end_loading(tracker, site, loaded)
            return loaded

        return load_measured


#: All there are.
loader_patches: Final = tuple(map(LoaderPatch, LOADER_METHODS))
