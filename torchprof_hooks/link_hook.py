"""The base class of hooks on modules, with Chainer's contract."""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar, cast

import torch

from torchprof_hooks.capture.hook_tracker import ask_again, is_default, make_tracker
from torchprof_hooks.capture.link_call import LinkCall
from torchprof_hooks.capture.module_tap import ModuleTap, module_taps
from torchprof_hooks.capture.registry import check_free, taps_of_thread
from torchprof_hooks.capture.tap import Tap
from torchprof_hooks.capture.thread_trackers import ThreadTrackers
from torchprof_hooks.capture.tracker import Tracker

Self = TypeVar("Self", bound="LinkHook")
Module = TypeVar("Module", bound=torch.nn.Module)


class LinkHook:
    """Callbacks around every call of a module (which Chainer calls a link).

    Subclass it and override what you need. ``with hook:`` activates it for all modules
    that this thread calls, `add_hook` for one module in all threads. Hooks are known by
    `name`: two of one name cannot be active at once in the same place, and a hook on a
    module takes the place of a thread-wide one of its name.

    Nested modules nest: pre of the outer, pre of the inner, post of the inner, post of
    the outer. A call that raises has no post. In a backward pass, a module's callbacks
    come before and after the work that belongs to the nodes its forward made; whichever
    hooks are active when the pass starts and were active in the forward are called.

    The semantics are those of ``chainer.LinkHook`` 7.8; the backward callbacks are new.

    Example:
        >>> class Printer(LinkHook):
        ...     name = "Printer"
        ...     def forward_preprocess(self, args):
        ...         print("forward", args.path)
        ...     def backward_preprocess(self, args):
        ...         print("backward", args.path)
        >>> with Printer():
        ...     model(x).sum().backward()
        forward Sequential
        forward Sequential.0
        backward Sequential
        backward Sequential.0
    """

    #: Under which the hook is registered.
    name: str = "LinkHook"

    def __enter__(self: Self) -> Self:
        """Activate the hook for all modules in this thread.

        Raises:
            KeyError: a hook of this name is active already.
        """
        taps = taps_of_thread()
        check_free(self.name, taps.get(self.name))
        self.added(None)
        taps[self.name] = Tap(self._make_tracker(everywhere=True), owner=self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.deleted(None)
        finally:
            taps = taps_of_thread()
            # Not by name: it may have been changed.
            name = next(name for name, tap in taps.items() if tap.owner is self)
            taps.pop(name).close(by_exception=error is not None)

    def added(self, link: torch.nn.Module | None) -> None:
        """Called when the hook is registered: on `link`, or thread-wide (None)."""

    def deleted(self, link: torch.nn.Module | None) -> None:
        """Called when the hook is unregistered: from `link`, or thread-wide (None)."""

    @is_default
    def forward_preprocess(self, args: LinkCall) -> None:
        """Called before the forward of a module."""

    @is_default
    def forward_postprocess(self, args: LinkCall) -> None:
        """Called after the forward of a module."""

    @is_default
    def backward_preprocess(self, args: LinkCall) -> None:
        """Called before the backward work of one call of a module."""

    @is_default
    def backward_postprocess(self, args: LinkCall) -> None:
        """Called after the backward work of one call of a module."""

    def _make_tracker(self, everywhere: bool) -> Tracker:
        """What serves this hook in one thread."""
        return make_tracker(self, everywhere, backward=False)

    @property
    def _module_threads(self) -> ThreadTrackers:
        """What serves this hook on all modules that it was put on. It is not made in
        ``__init__``, which subclasses need not call."""
        if self._threads is None:
            self._threads = self._new_module_threads()
        return self._threads

    def _new_module_threads(self) -> ThreadTrackers:
        return ThreadTrackers(lambda: self._make_tracker(everywhere=False))

    _threads: ThreadTrackers | None = None


def add_hook(module: Module, hook: LinkHook, name: str | None = None) -> Module:
    """Activate `hook` for calls of `module`, and of no other, in all threads.

    Args:
        module: what to hook.
        hook: what to call.
        name: registers the hook under another name than ``hook.name``.

    Returns:
        `module`.

    Raises:
        KeyError: `module` has a hook of that name.
        TypeError: `module` is not an ``nn.Module``, or `hook` is not a `LinkHook`.
    """
    _check_module(module)
    if not isinstance(hook, LinkHook):
        raise TypeError(f"hook must be a LinkHook, not {_describe(hook)}")
    name = hook.name if name is None else name
    taps = module_taps(module)
    check_free(name, taps.get(name))
    hook.added(module)
    threads = hook._module_threads
    if any(tap.hook is hook for tap in taps.values()):
        threads = hook._new_module_threads()  # each call is to be seen twice
    ModuleTap(module, name, hook, threads)
    ask_again(module)
    return module


def delete_hook(module: torch.nn.Module, name: str) -> None:
    """Deactivate the hook that was put on `module` under `name`.

    Raises:
        KeyError: there is none.
        TypeError: `module` is not an ``nn.Module``.
    """
    _check_module(module)
    taps = module_taps(module)
    if name not in taps:
        known = ", ".join(map(repr, taps)) or "none"
        raise KeyError(f"no hook {name!r} here; the registered ones: {known}")
    try:
        cast("LinkHook", taps[name].hook).deleted(module)
    finally:
        taps[name].close()


def _check_module(module: object) -> None:
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, not {_describe(module)}")


def _describe(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)
