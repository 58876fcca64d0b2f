"""The hooks by which a tracker is shown some of a program's steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from torchprof_hooks.capture.attach.attachments import Attachment, attachments
from torchprof_hooks.capture.attach.export_shield import script_patch
from torchprof_hooks.capture.core import hooks_of
from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.sampling.roots import ModuleReferences
from torchprof_hooks.capture.torch_names.hook_tables import (
    own_hook_number,
    remove_own_hook,
)
from torchprof_hooks.capture.tracking.module_tap import UncopiedHook
from torchprof_hooks.capture.tracking.tap import Tap
from torchprof_hooks.capture.tracking.tracker import Tracker

#: What a hook calls.
Told = Callable[..., object]


class RootHooks(Attachment):
    """Hooks of their own on some modules. Nothing is to be seen of them in other
    modules, which cost nothing.

    at_begin, at_end: are told what a forward pre-hook and a forward hook are, also of
        calls that fail; and look themselves at which thread it is, and whether Dynamo
        is tracing.
    """

    def __init__(self, roots: ModuleReferences, at_begin: Told, at_end: Told) -> None:
        super().__init__()
        # Not by the modules' own methods, which those of TorchScript do not have.
        put_pre = torch.nn.Module.register_forward_pre_hook
        put_post = torch.nn.Module.register_forward_hook
        self._hooks: list[tuple[weakref.ref[torch.nn.Module], Told, _RootHook]] = []
        for root in roots:
            self._hooks.append((root, put_pre, _root_hook(at_begin)))
            self._hooks.append((root, put_post, _root_hook(at_end, always_call=True)))

    @property
    def numbers(self) -> set[int]:
        """Those of the hooks, in the tables of their modules."""
        found = (own_hook_number(module, hook) for module, _, hook in self._living())
        return {number for number in found if number is not None}

    def put_on(self) -> None:
        """Put the hooks on their modules, as far as they are not there."""
        for module, put, hook in self._living():
            if own_hook_number(module, hook) is None:
                hook.handle = put(module, hook, **hook.options)

    def take_off(self) -> bool:
        """Remove them: also those whose handles an interrupt has lost."""
        for module, _, hook in self._living():
            remove_own_hook(module, hook)
        return True

    def _living(self) -> Iterator[tuple[torch.nn.Module, Any, _RootHook]]:
        for reference, put, hook in self._hooks:
            module = reference()
            if module is not None:
                yield module, put, hook


class _RootHook(UncopiedHook):
    """A hook that may be copied with its module."""

    options: ClassVar[dict[str, bool]]
    __call__: Callable[..., object]


def _root_hook(told: Told, **options: bool) -> _RootHook:
    """One that calls `told`: of a class of its own, so that Python goes from torch to
    `told` without a call in between, which each call of a root would pay for."""
    namespace = {"__call__": staticmethod(told), "options": options}
    kind: type[_RootHook] = type("RootHook", (_RootHook,), namespace)
    return kind()


class StepTaps:
    """What is open for one tracker at a time: a tap, hooks on outermost modules, both,
    or neither.

    on_pause: told of the end of whatever was called from outside of all.
    on_many: told of calls, some thousand at a time, where functions are seen.
    hides_functions: whether they are not shown any more, although the tracker is one
        that follows them.
    """

    def __init__(
        self,
        on_pause: Callable[[Site, int], object],
        on_many: Callable[[object], None],
    ) -> None:
        self._on_pause = on_pause
        self._on_many = on_many
        self.hides_functions = False
        self._tracker: Tracker | None = None
        self._tap: Tap | None = None
        self._root_hooks: RootHooks | None = None

    def open(self, tracker: Tracker, roots: ModuleReferences | None = None) -> None:
        """Show `tracker` the steps that come: all modules, or these alone; and backward
        passes, data loading and the like."""
        self._tracker = tracker
        tracker.on_pause = self._on_pause
        self._tap = Tap(tracker, modules=roots is None, optimizers=False)
        self._tap.open()
        if tracker.follows_functions:
            tracker.log.on_fold = self._on_many
        if roots is not None:
            self.watch(tracker, roots)

    def hide_functions(self) -> None:
        """Show no functions until the next `open`, but all else."""
        self.hides_functions = True
        if self._tap is not None:
            self._tap.hide_functions()

    def watch(self, tracker: Tracker, roots: ModuleReferences) -> None:
        """Show `tracker` the calls of these modules, and nothing else."""
        self._tracker = tracker
        tracker.on_pause = self._on_pause
        self._root_hooks = RootHooks(roots, *hooks_of(tracker))
        attachments.attach(script_patch, self._root_hooks)
        attachments.attach(self._root_hooks, self)

    def close(self, by_exception: bool = False) -> None:
        """Show nothing any more."""
        tracker, self._tracker = self._tracker, None
        self.hides_functions = False
        if tracker is not None:
            tracker.on_pause = tracker.log.on_fold = None
        if self._root_hooks is not None:
            attachments.detach(self._root_hooks, self)
            attachments.detach(script_patch, self._root_hooks)
            self._root_hooks = None
        if self._tap is not None:
            self._tap.close(by_exception)
            self._tap = None
        elif tracker is not None:
            tracker.abort_all(by_exception)
