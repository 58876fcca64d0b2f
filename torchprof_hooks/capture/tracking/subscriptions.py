"""Connects trackers with torch, and leaves no trace once they are gone."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from typing import Any, Final

import torch

from torchprof_hooks.capture.attach.attachments import Attachment, attachments
from torchprof_hooks.capture.attach.compiling import compilations
from torchprof_hooks.capture.attach.engine import engine_patch
from torchprof_hooks.capture.attach.garbage import garbage_callback
from torchprof_hooks.capture.attach.interception import Subscription, interception
from torchprof_hooks.capture.attach.loaders import loader_patches
from torchprof_hooks.capture.attach.optimizer_steps import optimizer_hooks
from torchprof_hooks.capture.communication.patches import communication_patches
from torchprof_hooks.capture.tracking.meters.meters import (
    counted_tensors,
    counts_tensors,
    heard_allocators,
    start_meters,
)
from torchprof_hooks.capture.tracking.tracker import Tracker

#: These tell trackers of passes, and of what interrupts calls.
_OF_TRACKERS: Final[tuple[Attachment, ...]] = (
    engine_patch,
    optimizer_hooks,
    *loader_patches,
    communication_patches,
    compilations,
)


#: What is said while somebody else has the place where calls of modules are seen.
KEPT_OUT: Final = (
    "not measured: modules, as another tool has taken nn.Module._compiled_call_impl"
)

#: What memory is counted by: one of them, if it is.
_OF_MEMORY: Final[tuple[Attachment, ...]] = counted_tensors, heard_allocators


class TrackerSubscription(Subscription):
    """Lets a tracker see every module call of the process, from `open` to `close`. Both
    can be called again if an interrupt has cut them short.

    optimizers: whether their steps are shown.
    """

    def __init__(self, tracker: Tracker, *, optimizers: bool = True) -> None:
        self.tracker = tracker
        self._shows_optimizers = optimizers
        self.cursors = (tracker,)
        self._is_open = False

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Give up what the tracker uses, as nobody can close this any more. Not when
        the tracker dies: a reference cycle may keep that alive until a collection."""
        if self._is_open and not is_ending():  # then modules are empty, this one, too
            if self.tracker.functions is not None:
                self.tracker.hear_operators(False)
            for attachment in (*_OF_TRACKERS, *_OF_MEMORY, garbage_callback):
                attachments.give_up(attachment, self.tracker)

    def open(self) -> None:
        """Connect the tracker."""
        self._is_open = True
        tracker = self.tracker
        if tracker.follows_modules:
            show_modules(self)
            if interception.is_kept_out and KEPT_OUT not in tracker.not_measured:
                tracker.not_measured = (*tracker.not_measured, KEPT_OUT)
        if tracker.backward is not None:
            self._show_backward()
        if counts_tensors(tracker):
            attachments.attach(counted_tensors, tracker)
        elif tracker.memory_owners is not None:
            attachments.attach(heard_allocators, tracker)
        start_meters(tracker)
        if tracker.memory_owners is not None:
            tracker.memory_owners.start()
        if tracker.functions is not None:
            tracker.hear_operators(True)

    def _show_backward(self) -> None:
        tracker = self.tracker
        if tracker.follows_modules:
            if self._shows_optimizers:
                attachments.attach(optimizer_hooks, tracker)
            for attachment in (*loader_patches, communication_patches, compilations):
                attachments.attach(attachment, tracker)
        attachments.attach(engine_patch, tracker)

    def close(self, by_exception: bool = False) -> None:
        """Disconnect the tracker; calls that are open end here.

        by_exception: whether an exception is the reason.
        """
        tracker = self.tracker
        if tracker.functions is not None:
            tracker.hear_operators(False)
        hide_modules(self)
        tracker.abort_all(by_exception)
        for attachment in _OF_TRACKERS:
            attachments.detach(attachment, tracker)
        if tracker.memory_owners is not None:
            tracker.memory_owners.stop()
        for attachment in _OF_MEMORY:
            attachments.detach(attachment, tracker)
        self._is_open = False


def show_modules(subscription: Subscription) -> None:
    """Show it all module calls, for as long as it lives, or until `hide_modules`."""
    attachments.attach(interception, subscription)


def hide_modules(subscription: Subscription) -> None:
    """Undo `show_modules`."""
    attachments.detach(interception, subscription)


class FirstCallSubscription(Subscription):
    """Waits until this thread calls a module, or another thread calls a module with
    parameters: threads that prepare data call modules, too, but transforms have no
    parameters.

    elsewhere: called if another thread makes the call, in that thread, as it begins.
    is_here: if not, this thread is treated like the others.
    """

    watches = True

    def __init__(self, elsewhere: Callable[[], object], is_here: bool) -> None:
        self._elsewhere = elsewhere
        self._home = get_ident() if is_here else None

    def open(self) -> None:
        """Begin to wait."""
        show_modules(self)

    def watch(self, module: torch.nn.Module, args: Any) -> None:
        """A call begins."""
        is_home = get_ident() == self._home
        if self.watches and (is_home or next(module.parameters(), None) is not None):
            self.watches = False
            if not is_home:
                self._elsewhere()
            hide_modules(self)
