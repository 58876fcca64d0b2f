"""Follows one thread through its calls, and notifies those who observe it."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.kernel.callbacks import CallListener, Listeners
from torchprof_hooks.kernel.interruptions import InterruptedCalls
from torchprof_hooks.kernel.module_names import ModuleNames
from torchprof_hooks.kernel.observer import Notified, Observer
from torchprof_hooks.kernel.passes import BackwardPass, Passes, PassRequest
from torchprof_hooks.kernel.reading import Reading
from torchprof_hooks.kernel.torch_names.autograd import (
    current_autograd_node,
    current_graph_task,
)
from torchprof_hooks.kernel.torch_names.compiler import (
    exempt_from_compilation,
    is_compiled_module,
    is_tracing,
)
from torchprof_hooks.kernel.torch_names.modules import original_module
from torchprof_hooks.kernel.tree import CallTree, Site
from torchprof_hooks.profiles.names import BACKWARD_NAME, PROFILER_NAME, Phase

#: Phases in which no module is called, and no data loaded: an optimizer that has its
#: loss computed again does so by a closure.
_WITHOUT_MODULES: Final = ("communication", "optimizer", "waiting")


class FollowedPasses(InterruptedCalls):
    """A cursor that is notified where passes begin and end, and moves to them.

    backward: what divides passes among the owners of their nodes; None: passes are not
        followed.
    notified: who is notified of passes.
    tail: name and phase of what comes after the last node of the pass that comes, if
        that interrupts it.
    """

    backward: Passes | None
    notified: Notified
    tail: tuple[str, Phase] | None

    def begin_pass(self, request: PassRequest) -> None:
        """The engine is about to begin a backward pass."""
        if self.backward is None:
            return
        self.drop_left_passes()
        if self.passes:  # a hook of a node runs this one
            self.backward.reach_node(self, self.passes[-1])
        found = self.site
        if found.is_loading:
            return
        opens = found.phase != "backward" or _have_nodes_ended()
        base = found
        if opens:
            base = self.tree.interruption_site(found, BACKWARD_NAME, "backward")
        if not self.passes:
            for notify in self.notified.pass_begins:
                notify()
        started = BackwardPass(base, opens, request.makes_graph, self.tail)
        self.backward.begin(self, started, request)

    def end_pass(self, outputs: object, failed: bool) -> None:
        """The backward pass that began last is over."""
        passes = [*self.passes]  # the handler of a signal may stop measuring
        if not passes or self.backward is None:
            return
        ended = passes[-1]
        if not failed and self.backward.finish(self, ended):
            self._notify_end()
            return
        self.fold_if_due()
        now_ns, before_ns = perf_counter_ns(), self.entered_ns
        ended.failed = failed
        try:
            tail_ns = self.backward.end(self, ended, now_ns)
            if tail_ns is not None and ended.tail is not None:
                self.interrupt(*ended.tail).end_at(tail_ns, now_ns)
                before_ns += now_ns - tail_ns
                for notify in self.notified.tail_ended:
                    notify(now_ns - tail_ns)
        finally:  # a callback may raise in there, and an interrupt come before it
            self._forget_pass(ended)
            self._notify_end()
            if ended.opened_base and not ended.was_left:  # our work is no part of it
                ours_ns = self.entered_ns - before_ns
                self.close_entry(ended.base, outputs, now_ns + ours_ns)

    def _notify_end(self) -> None:
        if not self.passes:
            self.tail = None
            for notify in self.notified.pass_ended:
                notify()

    def drop_left_passes(self) -> None:
        """End passes that an interrupt has left open: the engine runs none in this
        thread."""
        if self.site is self.outside and not self.passes:
            return
        if current_graph_task() != -1 or get_ident() != self.thread:
            return
        if self.passes and self.site is self.passes[-1].engine_site:
            return  # the pass is about to begin, and the handler of a signal runs
        while self.passes:
            left = self.passes[-1]
            left.was_left = True
            self.abort_down_to(left.base, self.last_stamp_ns())
            self._forget_pass(left)
        open_ones = [site for site in self.open_sites() if site.phase == "backward"]
        if open_ones:
            self.abort_down_to(open_ones[-1].caller, self.last_stamp_ns())

    def _forget_pass(self, ended: BackwardPass) -> None:
        """Forget the pass that began last; the core may have removed it already."""
        passes = self.passes
        if passes and passes[-1] is ended and self.backward is not None:
            self.backward.forget(self, ended)
        if passes and passes[-1] is ended:
            del passes[-1]

    def close_left(self) -> None:
        """Close interruptions that call no modules and load no data, where a module is
        called or data loaded: an exception has left them without notice."""
        self.drop_left_passes()
        while self.site.phase in _WITHOUT_MODULES:
            self.abort()

    def abort_all(self, by_exception: bool) -> None:
        """Close all open calls: as of now, if an exception is just leaving them, else
        as of the last moment at which they are known to have run."""
        end_ns = perf_counter_ns() if by_exception else self.last_stamp_ns()
        self.abort_down_to(self.outside, end_ns)
        while self.passes:
            self._forget_pass(self.passes[-1])

    def backward_site(self, around: Site, made_by: int | str) -> Site:
        """Where the backward of a call is booked, inside of `around`.

        made_by: the code of the call's site; or the name of the node, if the call that
            made it is not known.
        """
        if isinstance(made_by, int):
            return self.tree.backward_site(around, made_by)
        found: Site = self.functions.site_of_node(around, made_by)
        return found


def _have_nodes_ended() -> bool:
    """Whether a pass is past its last node, and the engine runs its final callbacks."""
    return current_graph_task() != -1 and current_autograd_node() is None


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
        self._listeners: tuple[CallListener, ...] = ()
        self.callbacks = None
        if callbacks is not None:
            self.listen(callbacks, True)
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
        followed: the module has a hook of its own, or the compiler makes the call. Of
        calls in compiled code, only those of the model's own modules are: these run in
        Python, around a graph break."""
        return (
            self.site.is_region
            or is_tracing()
            or self._is_compiled_code(module)
            or self.is_left_out(self.site, module)
        )

    def listen(self, listener: CallListener, does: bool) -> None:
        """Begin, or end, notifying `listener` of calls of modules."""
        found = tuple(each for each in self._listeners if each is not listener)
        self._listeners = found = (*found, listener) if does else found
        several = Listeners(found) if found else None
        self.callbacks = found[0] if len(found) == 1 else several

    def _is_compiled_code(self, module: torch.nn.Module) -> bool:
        """Whether a call of `module` is how torch runs the compiled module around."""
        around = self.site.living_module()
        if around is None or not is_compiled_module(around):
            return False
        if module is not around and module is original_module(around):
            return True
        return self.tree.names.get(module) is None

    def retire(self) -> None:
        """The followed thread has ended."""
        self.thread = _NO_THREAD

    # Optimizers (see `OptimizerHooks`)

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
