"""Connects trackers with torch: one with all calls of the process, and those of each
thread with one module or function. Leaves no trace once they are gone."""

from __future__ import annotations

import sys
import threading
import weakref
from _thread import get_ident
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any, Final

import torch
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from torchprof_hooks.kernel.attachments import Attachment, Layer, Patch, attachments
from torchprof_hooks.kernel.interception import Subscription, interception
from torchprof_hooks.kernel.optimizer_hooks import optimizer_hooks
from torchprof_hooks.kernel.passes import engine_patch
from torchprof_hooks.kernel.torch_names import Function
from torchprof_hooks.kernel.torch_names.autograd import current_graph_task
from torchprof_hooks.kernel.torch_names.compiler import script_module_maker
from torchprof_hooks.kernel.torch_names.modules import hide_hooks_of, pre_hooks_of
from torchprof_hooks.kernel.tracker import Tracker


class ThreadTrackers:
    """A tracker for each thread that needs one, made when it is first asked for.

    passes: while this has users, the trackers follow backward passes, until their
        threads end.
    trackers: those of threads that have not ended.
    """

    def __init__(self, make_tracker: Callable[[], Tracker]) -> None:
        self._make_tracker = make_tracker
        self._local = threading.local()
        self.trackers: list[Tracker] = []
        self.passes = _PassesOfThreads(self)

    def here(self) -> Tracker:
        """The tracker that the running thread works for: its own; or in one of the
        engine's threads, that of the thread which started the pass."""
        if current_graph_task() != -1:
            for known in [*self.trackers]:
                if known.works_here():
                    return known
        tracker: Tracker | None = getattr(self._local, "tracker", None)
        if tracker is None:
            tracker = self._local.tracker = self._make_tracker()
            self._local.lifetime = _Lifetime(tracker, self)
            self.trackers.append(tracker)
            attachments.renew(self.passes)
        return tracker

    def ended(self, tracker: Tracker) -> None:
        """The thread of `tracker` has ended."""
        # In place: another thread may be adding its own. `tracker` may be missing.
        with suppress(ValueError):
            self.trackers.remove(tracker)


class _PassesOfThreads(Attachment):
    """Notifies the trackers of some threads of backward passes. It refers to them
    weakly: their hook may refer to the module that is the user."""

    def __init__(self, threads: ThreadTrackers) -> None:
        super().__init__()
        self._threads = weakref.ref(threads)

    def put_on(self) -> None:
        for tracker in self._trackers():
            if tracker.backward is not None:
                attachments.attach(engine_patch, tracker)
                for observer in tracker.observers:
                    observer.attach()

    def take_off(self) -> bool:
        for tracker in self._trackers():
            attachments.detach(engine_patch, tracker)
            for observer in tracker.observers:
                observer.detach()
        return True

    def _trackers(self) -> list[Tracker]:
        threads = self._threads()
        return [] if threads is None else [*threads.trackers]


class TargetSubscription:
    """A hook on one target, until `close`, or until the target is gone.

    name: the name of the hook there.
    hook: the hook itself; its trackers are those in `threads`.
    """

    def __init__(self, name: str, hook: object, threads: ThreadTrackers) -> None:
        self.name = name
        self.hook = hook
        self._threads = threads
        attachments.attach(threads.passes, self)

    def close(self) -> None:
        """Disconnect the hook."""
        attachments.detach(self._threads.passes, self)


class _Lifetime:
    """Dies with a thread, and retires its tracker: the thread's number may then be
    given to another thread."""

    def __init__(self, tracker: Tracker, threads: ThreadTrackers) -> None:
        self._tracker = tracker
        self._threads = weakref.ref(threads)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_ending():  # modules are empty by now, this one, too
            return
        self._tracker.retire()
        threads = self._threads()
        if threads is not None:
            threads.ended(self._tracker)
        attachments.give_up(engine_patch, self._tracker)
        for observer in self._tracker.observers:
            observer.detach_in_finalizer()


def _make_scripting(original: Function, layer: Layer) -> Function:
    def create_script_module(nn_module: Any, *args: Any, **kwargs: Any) -> Any:
        if not layer.is_on:
            return original(nn_module, *args, **kwargs)
        numbers = {n for user in _script_patch.users for n in user.numbers}
        show = hide_hooks_of(nn_module, numbers)
        try:
            return original(nn_module, *args, **kwargs)
        finally:
            show()

    return create_script_module


#: TorchScript would compile the hooks of a module along with it, and cannot compile
#: ours: they are hidden while it looks for hooks. Its users are `ModuleSubscription`s.
_script_patch: Final = Patch(script_module_maker, _make_scripting)

_Module: Final = torch.nn.Module


class ModuleSubscription(TargetSubscription):
    """Notifies the trackers of one hook of the calls of one module, in any thread.

    The only reference to it is in the module's own table of hooks: it lives and dies
    with the module, also when the hook refers to the module in turn.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        name: str,
        hook: object,
        threads: ThreadTrackers,
    ) -> None:
        # Before the hooks: an interrupt may come in between. The attachments end with
        # this object, also when the module dies with its hooks still on.
        super().__init__(name, hook, threads)
        self._handles: list[RemovableHandle] = []
        self._module = weakref.ref(module)
        attachments.attach(_script_patch, self)
        pre, post = _PreHook(self, threads), _PostHook(self, threads)
        # Not by the module's own methods: modules of TorchScript do not have them.
        self._handles = [
            _Module.register_forward_pre_hook(module, pre),
            _Module.register_forward_hook(module, post, always_call=True),
        ]
        pre.handle, post.handle = self._handles

    def close(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()
        module = self._module()
        for tracker in [*self._threads.trackers]:
            if tracker.callbacks is not None and module is not None:
                tracker.callbacks.forget(module)
        attachments.detach(_script_patch, self)
        super().close()

    @property
    def numbers(self) -> set[int]:
        """The numbers of its hooks in the tables of its module."""
        return {handle.id for handle in self._handles}


def module_subscriptions(module: torch.nn.Module) -> dict[str, ModuleSubscription]:
    """Those on `module`, by name."""
    hooks = pre_hooks_of(module)
    return {h.user.name: h.user for h in hooks if isinstance(h, _PreHook)}


class _ModuleHook:
    """A hook in a module's own table, which is copied and pickled with the module. The
    copy is not measured: a function of Python's that does nothing is in its place, as
    files of models are read where this package is not installed.

    handle: what torch gave for the hook. A copy of it goes along: where it is made,
        torch gives the number of the hook to no other one.
    """

    handle: RemovableHandle

    def __init__(self, user: ModuleSubscription, threads: ThreadTrackers) -> None:
        self.user = user
        self._threads = threads

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, str]]:
        return getattr, (nullcontext(self.handle), "__exit__")


class _PreHook(_ModuleHook):
    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        if not is_dynamo_compiling():
            self._threads.here().forward_pre(module, args)


class _PostHook(_ModuleHook):
    def __call__(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        if not is_dynamo_compiling():
            self._threads.here().forward_post(module, args, outputs)


#: Printed while somebody else has the place of the interceptor.
KEPT_OUT: Final = (
    "not measured: modules, as another tool has taken nn.Module._compiled_call_impl"
)


class TrackerSubscription(Subscription):
    """Notifies a tracker of every module call of the process, from `open` to `close`.
    Both can be called again if an interrupt has cut them short.

    optimizers: whether the tracker is notified of their steps.
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
            attachments.give_up(engine_patch, self.tracker)
            attachments.give_up(optimizer_hooks, self.tracker)
            for observer in self.tracker.observers:
                observer.given_up()
                observer.detach_in_finalizer()

    def open(self) -> None:
        """Connect the tracker."""
        self._is_open = True
        tracker = self.tracker
        show_modules(self)
        if interception.is_kept_out and KEPT_OUT not in tracker.not_measured:
            tracker.not_measured = (*tracker.not_measured, KEPT_OUT)
        if tracker.backward is not None:
            if self._shows_optimizers:
                attachments.attach(optimizer_hooks, tracker)
            attachments.attach(engine_patch, tracker)
        for observer in tracker.observers:
            observer.attach()
        for observer in tracker.observers:
            observer.began()

    def close(self, by_exception: bool = False) -> None:
        """Disconnect the tracker; calls that are open end here.

        by_exception: whether an exception is the reason.
        """
        tracker = self.tracker
        hide_modules(self)
        tracker.abort_all(by_exception)
        attachments.detach(optimizer_hooks, tracker)
        attachments.detach(engine_patch, tracker)
        for observer in reversed(tracker.observers):
            observer.ended()
        for observer in tracker.observers:
            observer.detach()
        self._is_open = False


def show_modules(subscription: Subscription) -> None:
    """Notify it of all module calls, for as long as it lives, or until
    `hide_modules`."""
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
