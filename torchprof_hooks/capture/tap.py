"""Connects trackers with torch, and leaves no trace once they are gone."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from torchprof_hooks.capture.backward_entry import backward_entry
from torchprof_hooks.capture.backward_tracker import BackwardTracker
from torchprof_hooks.capture.compile_shield import compile_shield
from torchprof_hooks.capture.data_entry import data_entry
from torchprof_hooks.capture.function_taps import function_taps
from torchprof_hooks.capture.function_tracker import FunctionTracker
from torchprof_hooks.capture.meter_tracker import MeterTracker
from torchprof_hooks.capture.optimizer_entry import optimizer_entry
from torchprof_hooks.capture.owning_tracker import OwningTracker
from torchprof_hooks.capture.thread_trackers import ThreadTrackers
from torchprof_hooks.capture.tracker import Tracker


class Tap:
    """Lets a tracker see every module call of the process, until `close`.

    A process without an open tap runs exactly as without this package: torch takes the
    short way through module calls as soon as its tables of global hooks are empty.

    modules, optimizers: whether their calls are shown.
    """

    def __init__(
        self,
        tracker: Tracker,
        owner: object = None,
        *,
        modules: bool = True,
        optimizers: bool = True,
    ) -> None:
        self._tracker = tracker
        self.owner = owner  # on whose behalf
        _hush.acquire()
        compile_shield.watch()
        self._handles: list[RemovableHandle] = []
        try:
            self._show(tracker, modules, optimizers)
        except BaseException:  # an interrupt: nobody will have a tap to close
            self.close(by_exception=True)
            raise

    def _show(self, tracker: Tracker, modules: bool, optimizers: bool) -> None:
        if not isinstance(tracker, FunctionTracker) or tracker.follows_modules:
            if modules:
                self._show_modules(tracker)
            if optimizers and isinstance(tracker, BackwardTracker):
                optimizer_entry.add(tracker)
            if isinstance(tracker, OwningTracker):
                data_entry.add(tracker)
        if isinstance(tracker, BackwardTracker):
            backward_entry.add(tracker)
        if isinstance(tracker, MeterTracker):
            tracker.start_meters()
        if isinstance(tracker, FunctionTracker) and tracker.follows_functions:
            function_taps.show_functions(tracker)

    def _show_modules(self, tracker: Tracker) -> None:
        self._handles += [
            register_module_forward_pre_hook(tracker.forward_pre),
            # always_call: a forward that raises closes its call all the same.
            register_module_forward_hook(tracker.forward_post, always_call=True),
        ]
        compile_shield.add(self._handles)

    def close(self, by_exception: bool = False) -> None:
        """Disconnect the tracker; calls that are open end here.

        by_exception: whether an exception is the reason.
        """
        tracker = self._tracker
        if isinstance(tracker, FunctionTracker) and tracker.mode is not None:
            function_taps.hide_functions(tracker)
        compile_shield.remove(self._handles)
        for handle in self._handles:
            handle.remove()
        tracker.abort_all(by_exception)
        if isinstance(tracker, BackwardTracker):
            backward_entry.remove(tracker)
            optimizer_entry.remove(tracker)
        if isinstance(tracker, OwningTracker):
            data_entry.remove(tracker)
        _hush.release()


class ProcessTap:
    """Lets trackers see every module call in every thread, for the rest of the process.

    Each thread gets a tracker of its own from `make_tracker`.
    """

    def __init__(self, make_tracker: Callable[[], Tracker]) -> None:
        self.threads = ThreadTrackers(make_tracker, keeps_ended=True)
        self.threads.acquire()
        _hush.acquire()
        register_module_forward_pre_hook(self._forward_pre)
        register_module_forward_hook(self._forward_post, always_call=True)

    def _forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        if not is_dynamo_compiling():
            self.threads.here().forward_pre(module, args)

    def _forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        if not is_dynamo_compiling():
            self.threads.here().forward_post(module, args, outputs)


class _HushedWarning:
    """torch.compile warns its users when global hooks fire for a compiled module as
    well. Ours know how to deal with that, and their user can do nothing about it."""

    # Put into the list by hand: filterwarnings() would also make Python forget which
    # warnings it has shown already, and show them all again.
    _filter = (
        "ignore",
        re.compile(r"Using `torch\.compile\(module\)` when there are global hooks"),
        UserWarning,
        None,
        0,
    )

    def __init__(self) -> None:
        self._users = 0

    def acquire(self) -> None:
        with _lock:
            self._users += 1
            if self._users == 1:
                warnings.filters.insert(0, self._filter)  # type: ignore[attr-defined]

    def release(self) -> None:
        with _lock:
            self._users -= 1
            if not self._users and self._filter in warnings.filters:
                warnings.filters.remove(self._filter)  # type: ignore[attr-defined]


_lock = threading.Lock()
_hush = _HushedWarning()
