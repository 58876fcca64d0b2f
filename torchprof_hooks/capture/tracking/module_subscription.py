"""Connects the trackers of a hook with one module."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import torch
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from torchprof_hooks.capture.attach.attachments import attachments
from torchprof_hooks.capture.attach.compiling import script_patch
from torchprof_hooks.capture.torch_names.modules import pre_hooks_of
from torchprof_hooks.capture.tracking.thread_trackers import (
    TargetSubscription,
    ThreadTrackers,
)

_Module: Final = torch.nn.Module


class ModuleSubscription(TargetSubscription):
    """Lets the trackers of one hook see the calls of one module, in any thread.

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
        attachments.attach(script_patch, self)
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
        attachments.detach(script_patch, self)
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
