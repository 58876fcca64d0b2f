"""Follows one thread through its calls, and notifies those who observe it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.kernel.callbacks import CallListener
from torchprof_hooks.kernel.followed_passes import FollowedPasses
from torchprof_hooks.kernel.module_names import ModuleNames
from torchprof_hooks.kernel.observer import Notified, Observer
from torchprof_hooks.kernel.passes import Passes
from torchprof_hooks.kernel.reading import Reading
from torchprof_hooks.kernel.torch_names.compiler import (
    exempt_from_compilation,
    is_compiled_module,
    is_tracing,
)
from torchprof_hooks.kernel.tree import CallTree, Site
from torchprof_hooks.profiles.names import PROFILER_NAME

#: A number that no thread has.
_NO_THREAD: Final = -1


class Tracker(FollowedPasses):
    """Follows one thread: it is what observers read (see `Reading`).

    The thread is at exactly one site at any moment. The begin of a module's call moves
    it to the site of the call, the end closes the call and moves it back: that is what
    the core does. Names, totals and tables are made of that later, outside of the
    measured work.

    A module called while a backward pass runs is being recomputed. Recomputations are
    interruptions, as are passes, unless they run inside of another one.

    profiler: where work of ours is booked that interrupts calls.
    is_notified_by_hooks: whether hooks on modules notify it, not the
        interceptor.
    is_left_out: whether calls of a module from a site are not to be followed: if it has
        a hook of its own that replaces the one served here, say.
    not_measured: what was asked for and cannot be measured, one line each.
    """

    def __init__(
        self,
        names: ModuleNames | None = None,
        *,
        backward: Passes | None = None,
        observers: Sequence[Observer] = (),
        callbacks: CallListener | None = None,
    ) -> None:
        super().__init__()
        self.tree = CallTree(names or ModuleNames(), self.sites)
        self.outside = self.site = self.tree.new_site(None, (), "outside")
        self.profiler = self.tree.new_site(self.outside, (PROFILER_NAME,), "profiler")
        self.profiler.is_counted = False
        self.backward = backward
        self.owns_nodes = backward is not None
        self.aborted_calls = self.undivided_passes = self.waited_ns = 0
        self.is_notified_by_hooks = False
        self.is_left_out: Callable[[Site, torch.nn.Module], bool] = lambda *_: False
        self.callbacks = callbacks
        self.not_measured: tuple[str, ...] = ()
        self.observers, self.notified = observers, Notified(observers)
        self.tail = None
        reading: Reading = self
        for observer in observers:
            observer.follow(reading)

    # Modules

    def called_site(self, module: torch.nn.Module) -> Site | None:
        """The site of a call of `module` from the current site, which does not know it
        yet; None if the call is not to be followed."""
        self.close_left()
        if self.is_notified_by_hooks:
            self.close_left_calls()
        if self.ignores(module):
            return None
        exempt_from_compilation()  # the program may have begun to use torch.compile
        site = self.tree.site_of_module(self.site, module)
        for notify in self.notified.new_call:
            notify(site, module)
        return site

    def ignores(self, module: torch.nn.Module) -> bool:
        """Whether a call of `module`, which is new at the current site, is not to be
        followed: the module has a hook of its own, or the compiler makes the call, or
        it is a part of a compiled region. A region is one owner, even if some of the
        modules inside run in Python."""
        around = self.site.living_module()
        return (
            self.site.is_region
            or (around is not None and is_compiled_module(around))
            or is_tracing()
            or self.is_left_out(self.site, module)
        )

    def retire(self) -> None:
        """The followed thread has ended."""
        self.thread = _NO_THREAD

    # Optimizers (see `OptimizerListener`)

    def optimizer_pre(self, optimizer: Any) -> None:
        """Notify observers of the begin of a step of `optimizer`."""
        if self.works_here() and not (is_dynamo_compiling() or self.site.is_loading):
            for notify in self.notified.optimizer_begins:
                notify(optimizer)

    def optimizer_post(self, optimizer: Any) -> None:
        """Notify them of its end."""
        if self.works_here() and not is_dynamo_compiling():
            ended_ns = perf_counter_ns()
            for notify in self.notified.optimizer_ended:
                notify(optimizer, ended_ns)

    def begin_closure(self) -> Callable[[], object]:
        """Notify them that the optimizer calls its closure. Returns what is to be
        called at the end."""
        if not self.works_here():
            return _do_nothing
        ends = [notify() for notify in self.notified.closure_begins]
        return partial(_call_all, [end for end in ends if end is not None])


def _do_nothing() -> None:
    """For closures that nobody observes."""


def _call_all(functions: list[Callable[[], object]]) -> None:
    for function in reversed(functions):
        function()
