"""Waiting for data: where a loop makes an iterator over a ``DataLoader``, or asks it
for a batch."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from torch.compiler import is_dynamo_compiling

from torchprof_hooks.kernel.attachments import Layer, Patch, leave_out_our_frame
from torchprof_hooks.kernel.interruptions import Interruption
from torchprof_hooks.kernel.observer import Observer
from torchprof_hooks.kernel.torch_names import Function
from torchprof_hooks.kernel.torch_names.checkpoints_and_loaders import (
    LOADER_METHODS,
    LoaderMethod,
)
from torchprof_hooks.kernel.torch_names.compiler import is_tracing
from torchprof_hooks.kernel.torch_names.modules import frames_from
from torchprof_hooks.profiles.names import DATA_NAME


class LoaderPatch(Patch):
    """One of these places; its users are `DataLoading`s.

    torch has no hooks for that. So while there are users, this replaces the method that
    every loader ends up in by one that notifies those of the running thread, and then
    does the same.
    """

    def __init__(self, method: LoaderMethod) -> None:
        super().__init__(method.find, self._make_method)
        self._gives_batches = method.gives_batches

    def _make_method(self, original: Function, layer: Layer) -> Function:
        @wraps(original)
        def load_measured(source: Any, *args: Any, **kwargs: Any) -> Any:
            if is_dynamo_compiling() or is_tracing() or not layer.is_on:
                return original(source, *args, **kwargs)
            begun: list[Interruption] = []
            try:
                for observer in self.users_here():
                    found = observer.begin(source, self._gives_batches)
                    if found is not None:
                        begun.append(found)
                loaded = original(source, *args, **kwargs)
            except BaseException as error:
                for found in reversed(begun):
                    _fail(found, error)
                leave_out_our_frame(error)
                raise
            for found in reversed(begun):
                found.end(loaded)
            return loaded

        return load_measured


class DataLoading(Observer):
    """Has waiting for data interrupt calls.

    follows_modules: whether modules that are called while data is loaded are calls of
        their own.
    """

    attachments = tuple(map(LoaderPatch, LOADER_METHODS))

    def __init__(self, follows_modules: bool = False) -> None:
        self._follows_modules = follows_modules

    def begin(self, source: object, gives_batch: bool) -> Interruption | None:
        """Begin to wait for `source`: an iterator over batches, or a loader that makes
        one. None if this is a part of other loading: a data set may load from
        another."""
        reading = self.reading
        reading.close_left()
        if reading.site.phase == "data":
            if _loads_on_stack() > 1:
                return None
            reading.abort()  # an interrupt has left it
        found = reading.interrupt(DATA_NAME, "data", of=source, is_call=gives_batch)
        found.site.is_loading = not self._follows_modules
        return found


def _fail(waiting: Interruption, error: BaseException) -> None:
    """End the wait where loading has raised. If there are no more batches, the wait is
    not counted as a call, but its time is booked all the same."""
    if isinstance(error, StopIteration):
        waiting.end_uncounted()
    else:
        waiting.fail()


def _loads_on_stack() -> int:
    """How many loads are on this thread's Python stack, with the one that begins."""
    frames = frames_from(sys._getframe(1))
    return sum(
        frame.f_code.co_name == "load_measured" and frame.f_globals is globals()
        for frame in frames
    )
