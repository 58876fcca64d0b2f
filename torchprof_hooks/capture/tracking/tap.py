"""Connects trackers with torch, and leaves no trace once they are gone."""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.attach.attachments import Attachment, attachments
from torchprof_hooks.capture.attach.compiling import (
    compilations,
    compile_shield,
    export_shield,
    hushed_warning,
)
from torchprof_hooks.capture.attach.engine import engine_patch, recomputation_patches
from torchprof_hooks.capture.attach.loaders import loader_patches
from torchprof_hooks.capture.attach.module_hooks import (
    AnyHooks,
    CursorHooks,
    ModuleHooks,
)
from torchprof_hooks.capture.attach.optimizer_steps import optimizer_hooks
from torchprof_hooks.capture.communication.patches import communication_patches
from torchprof_hooks.capture.tracking.meters.memory import counted_tensors
from torchprof_hooks.capture.tracking.meters.meters import counts_tensors
from torchprof_hooks.capture.tracking.thread_trackers import ThreadTrackers
from torchprof_hooks.capture.tracking.tracker import Tracker

if TYPE_CHECKING:
    from torchprof_hooks.capture.attach.function_taps import FunctionTaps

#: What tells trackers of passes, and of what interrupts calls.
_OF_TRACKERS: Final[tuple[Attachment, ...]] = (
    engine_patch,
    *recomputation_patches,
    optimizer_hooks,
    *loader_patches,
    communication_patches,
    compilations,
)


#: Told of the end of a call: with the module, what it was called with, and what it has
#: returned.
AtEnd = Callable[[torch.nn.Module, Any, Any], None]


class Tap:
    """Lets a tracker see every module call of the process, from `open` to `close`. Both
    can be called again if an interrupt has cut them short.

    optimizers: whether their steps are shown.
    """

    def __init__(self, tracker: Tracker, *, optimizers: bool = True) -> None:
        self._tracker = tracker
        self._shows_optimizers = optimizers
        self._hooks = CursorHooks(tracker)
        self._function_taps: FunctionTaps | None = None  # imported if it is needed
        self._is_open = False

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        """Nobody can close it any more. What the tracker uses is given up now, and not
        when the tracker dies: a reference cycle may keep that until a collection."""
        if self._is_open and not is_ending():  # then modules are empty, this one, too
            for attachment in (*_OF_TRACKERS, counted_tensors):
                attachments.give_up(attachment, self._tracker)
            if self._function_taps is not None:
                self._function_taps.give_up_functions(self._tracker)

    def open(self) -> None:
        """Connect the tracker."""
        self._is_open = True
        tracker = self._tracker
        if tracker.follows_modules:
            show_modules(self._hooks, self)
        if tracker.backward is not None:
            self._show_backward()
        if tracker.meters is not None:
            if counts_tensors(tracker):
                attachments.attach(counted_tensors, tracker)
            tracker.meters.start(tracker)
        if tracker.functions is not None:
            from torchprof_hooks.capture.attach.function_taps import function_taps

            self._function_taps = function_taps
            function_taps.show_functions(tracker, self)

    def _show_backward(self) -> None:
        tracker = self._tracker
        if tracker.follows_modules:
            if self._shows_optimizers:
                attachments.attach(optimizer_hooks, tracker)
            for attachment in (*loader_patches, communication_patches, compilations):
                attachments.attach(attachment, tracker)
        for attachment in (engine_patch, *recomputation_patches):
            attachments.attach(attachment, tracker)

    def hide_functions(self) -> None:
        """Show no functions from now on, but all else."""
        if self._function_taps is not None:
            self._function_taps.hide_functions(self._tracker, self)

    def close(self, by_exception: bool = False) -> None:
        """Disconnect the tracker; calls that are open end here.

        by_exception: whether an exception is the reason.
        """
        tracker = self._tracker
        self.hide_functions()
        hide_modules(self._hooks, self)
        tracker.abort_all(by_exception)
        for attachment in _OF_TRACKERS:
            attachments.detach(attachment, tracker)
        if tracker.meters is not None:
            attachments.detach(counted_tensors, tracker)
        self._is_open = False


def show_modules(hooks: AnyHooks, user: object) -> None:
    """Have `hooks` see all modules, for as long as `user` lives, or until
    `hide_modules`."""
    for shield in (compile_shield, hushed_warning, export_shield):
        attachments.attach(shield, hooks)
    attachments.attach(hooks, user)


def hide_modules(hooks: AnyHooks, user: object) -> None:
    """Undo `show_modules`."""
    attachments.detach(hooks, user)
    for shield in (export_shield, hushed_warning, compile_shield):
        attachments.detach(shield, hooks)


class ProcessTap:
    """Lets trackers see every module call in every thread, for the rest of the process.

    Each thread gets a tracker of its own from `make_tracker`.

    wants: whether the call of a module that begins is shown to the tracker.
    """

    def __init__(
        self,
        make_tracker: Callable[[], Tracker],
        wants: Callable[[Tracker, torch.nn.Module], bool],
    ) -> None:
        self._threads = ThreadTrackers(make_tracker)
        attachments.attach(self._threads.passes, self)
        self._wants = wants
        self._hooks = ModuleHooks(self._forward_pre, self._forward_post)
        attachments.attach(hushed_warning, self._hooks)
        attachments.attach(self._hooks, self)

    def _forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        if not is_dynamo_compiling():
            tracker = self._threads.here()
            if self._wants(tracker, module):
                tracker.forward_pre(module, args)

    def _forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        if not is_dynamo_compiling():
            self._threads.here().forward_post(module, args, outputs)


class FirstCall:
    """Waits until the thread that opens it calls a module, or another thread one with
    parameters: threads that prepare data call modules, too, but transforms have no
    parameters.

    elsewhere: told of a call by another thread, in that thread, as the call begins.
        Hooks that it puts on modules are shown later calls only, so what it returns is
        told of the end of this one.
    is_here: if not, the thread that opens it is treated like the others.
    """

    def __init__(
        self,
        elsewhere: Callable[[torch.nn.Module, Any], AtEnd | None],
        is_here: bool,
    ) -> None:
        self._elsewhere = elsewhere
        self._home = get_ident() if is_here else None
        self._is_over = False
        self._called = 0  # the id of the module
        self._at_end: AtEnd | None = None
        self._hooks = ModuleHooks(self._forward_pre, self._forward_post)

    def open(self) -> None:
        """Begin to wait."""
        show_modules(self._hooks, self)

    def _forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """A call begins."""
        if is_dynamo_compiling() or self._is_over:
            return
        is_home = get_ident() == self._home
        if is_home or next(module.parameters(), None) is not None:
            self._is_over = True
            if not is_home:
                self._called = id(module)
                self._at_end = self._elsewhere(module, args)
            if self._at_end is None:
                hide_modules(self._hooks, self)

    def _forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """A call ends."""
        if self._at_end is not None and id(module) == self._called:
            at_end, self._at_end = self._at_end, None
            hide_modules(self._hooks, self)
            at_end(module, args, outputs)
