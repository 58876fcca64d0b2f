"""Shows a tracker the calls of a few modules."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from torchprof_hooks.capture.module_tap import ModuleTap, UncopiedHook
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.tracker import Tracker

_NAME = "torchprof_hooks roots"
#: Phases of what is neither a module nor a function, nor a part of backward.
_NO_CALLS: Final = ("optimizer", "outside")


class RootTaps:
    """Hooks of their own on some modules, until `close`; nothing is to be seen of them
    in other modules, which cost nothing."""

    def __init__(self, tracker: Tracker, modules: Iterable[torch.nn.Module]) -> None:
        only = _OneTracker(tracker)
        self._taps = [ModuleTap(module, _NAME, self, only) for module in modules]

    def close(self) -> None:
        """Take the hooks off."""
        for tap in self._taps:
            tap.close()


class RootEnds:
    """Hooks on some modules that do nothing but tell, in this thread, that a call has
    ended, until `close`. A call that fails is not told of."""

    def __init__(self, at_end: Callable[[], object]) -> None:
        self._at_end = at_end
        self._handles: list[RemovableHandle] = []

    def open(self, modules: Iterable[torch.nn.Module]) -> None:
        """Put the hooks on."""
        for module in modules:
            hook = _EndHook(self._at_end)
            # Not by the module's own method, which those of TorchScript do not have.
            hook.handle = torch.nn.Module.register_forward_hook(module, hook)
            self._handles.append(hook.handle)

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()


class _EndHook(UncopiedHook):
    def __init__(self, at_end: Callable[[], object]) -> None:
        self._at_end = at_end
        self._thread = get_ident()

    def __call__(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        if not is_dynamo_compiling() and get_ident() == self._thread:
            self._at_end()


class _OneTracker:
    """In place of a tracker for each thread: one, which knows its own."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker

    def here(self) -> Tracker:
        return self._tracker

    def acquire_for(self, owner: object) -> None:
        """It is told of backward passes elsewhere."""

    def release_for(self, owner: object) -> None:
        """See above."""


def outermost_modules(outside: Site) -> Iterator[torch.nn.Module]:
    """The living modules that were called from outside of any other."""
    for place in _outside_of_modules(outside):
        for site in place.children.values():
            module = site.living_module()
            if module is not None:
                yield module


def _outside_of_modules(site: Site) -> Iterator[Site]:
    """Sites that calls of outermost modules can come from: an optimizer's closure is
    one, for example."""
    yield site
    for known in site.children_by_name.values():
        for inner in known:
            if inner.phase in _NO_CALLS:
                yield from _outside_of_modules(inner)
