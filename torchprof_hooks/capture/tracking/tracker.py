"""Follows one thread through everything that is measured."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.attach.compiling import watch_compiler
from torchprof_hooks.capture.backward.backward_pass import (
    BackwardPass,
    PassRequest,
)
from torchprof_hooks.capture.communication.measured import Exchanges
from torchprof_hooks.capture.core.span_log import Int64s, Times
from torchprof_hooks.capture.record.call_tree import NO_MODULE, CallTree, Site
from torchprof_hooks.capture.record.module_names import ModuleNames
from torchprof_hooks.capture.record.step_counter import SlowSteps
from torchprof_hooks.capture.torch_names.autograd import (
    current_autograd_node,
    current_graph_task,
)
from torchprof_hooks.capture.torch_names.compiler import (
    is_compiled_module,
    is_tracing,
)
from torchprof_hooks.capture.tracking.callbacks import CallListener
from torchprof_hooks.capture.tracking.meters.device import DeviceMeter
from torchprof_hooks.capture.tracking.meters.meters import Meter, meters_of
from torchprof_hooks.capture.tracking.open_calls import OpenCalls
from torchprof_hooks.profiles.names import (
    BACKWARD_NAME,
    GARBAGE_NAME,
    OUTSIDE_NAME,
    PROFILER_NAME,
    Phase,
)

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.backward_pass import Passes
    from torchprof_hooks.capture.functions.operator_calls import OperatorCalls
    from torchprof_hooks.capture.tracking.meters.memory_owners import MemoryOwners

#: A number that no thread has.
_NO_THREAD: Final = -1


class Tracker(OpenCalls):
    """Follows one thread through its calls, and what interrupts them, and measures.

    The thread is at exactly one site at any moment. The begin of a module's call moves
    it to the site of the call, the end closes the call and moves it back: that is what
    the core does. Names, totals and tables are made of that later, outside of the
    measured work. The attachments to torch tell the tracker of calls, passes and steps,
    and it owns all other objects that take part in measuring. `make_tracker` puts one
    together.

    A module called while a backward pass runs is being recomputed. Recomputations are
    entries, as are passes, unless they run inside of another one.

    tree, names: the sites, and the names of the modules.
    profiler: where work of ours is booked that interrupts calls.
    exchanges: what was exchanged with other processes.
    slow_steps: what was booked in the slowest training steps.
    backward: what follows backward passes, and divides them among the owners of their
        nodes; None: passes are not followed, and nobody asks for owners.
    meters: what is read besides the host's clock.
    memory_owners: is told of modules, optimizers and passes; None: nobody asks who
        holds the memory.
    on_module: is told of each module whose calls at a site are new; None: nobody is.
    functions, callbacks: see `Cursor`.
    follows_modules: whether modules are to be shown to it.
    follows_loading: whether modules that are called while data is loaded are calls of
        their own.
    shown_by_hooks: whether hooks show it module calls.
    is_left_out: whether calls of a module from a site are not to be followed: if it has
        a hook of its own that replaces the one served here, say.
    names_nodes: whether nodes without a known function are functions of their own.
    undivided_passes: how many passes were not divided among their owners, because nodes
        of several threads had the same number.
    not_measured: what was asked for and cannot be measured, one line each.
    """

    callbacks: CallListener | None
    functions: OperatorCalls | None

    def __init__(
        self,
        names: ModuleNames | None = None,
        *,
        backward: Passes | None = None,
        functions: OperatorCalls | None = None,
        meters: Sequence[Meter] = (),
        callbacks: CallListener | None = None,
        follows_modules: bool = True,
    ) -> None:
        super().__init__()
        self.tree = CallTree(names or ModuleNames(), self.sites)
        self.names = self.tree.names
        self.outside = self.site = self.tree.new_site(None, (), "outside")
        self.garbage = self.entry_site(GARBAGE_NAME, "garbage")
        self.profiler = self.tree.new_site(self.outside, (PROFILER_NAME,), "profiler")
        self.profiler.is_counted = False
        self.backward = backward
        self.owns_nodes = backward is not None
        self.slow_steps = SlowSteps(self.log)
        self.exchanges = Exchanges()
        self.aborted_calls = 0
        self.born_ns = perf_counter_ns()
        self.retired_ns: int | None = None
        self.shown_by_hooks = False
        self.is_left_out: Callable[[Site, torch.nn.Module], bool] = lambda *_: False
        self.follows_loading = callbacks is not None  # they are told of all calls
        self.functions = functions
        self.callbacks = callbacks
        self.follows_modules = follows_modules
        self.names_nodes = functions is not None
        self.undivided_passes = 0
        self.not_measured: tuple[str, ...] = ()
        self.meters = meters
        self.memory_owners: MemoryOwners | None = None
        self.on_module: Callable[[Tracker, torch.nn.Module], None] | None = None
        for meter in meters:
            meter.serve(self)
        if functions is not None:
            functions.serve(self)

    # Modules

    def called_site(self, module: torch.nn.Module) -> Site | None:
        """The site of a call of `module` from the current site, which does not know it
        yet; None if the call is not to be followed."""
        self.close_left_entries()
        if self.shown_by_hooks:
            self.close_left_calls()
        if self.ignores(module):
            return None
        watch_compiler()
        site = self.tree.site_of_module(self.site, module)
        for meter in meters_of(self, DeviceMeter):
            meter.place(site, module)
        if self.on_module is not None:
            self.on_module(self, module)
        if self.memory_owners is not None and site.is_entry:
            self.memory_owners.meet_module(module, site.path)
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

    # Where the thread is

    def retire(self) -> None:
        """The followed thread has ended."""
        self.thread = _NO_THREAD
        self.retired_ns = perf_counter_ns()

    def age_ns(self) -> int:
        """How long the thread has been followed."""
        end_ns = perf_counter_ns() if self.retired_ns is None else self.retired_ns
        return end_ns - self.born_ns

    def entry_site(self, name: str, phase: Phase, key: int = NO_MODULE) -> Site:
        """The site of something that is not a module, called from the current site."""
        return self.tree.entry_site(self.site, name, phase, key)

    @contextmanager
    def our_work(self) -> Iterator[None]:
        """What this thread does inside is profiler overhead: it interrupts the calls
        that are open. Not if measuring ends, or begins, in there."""
        began_ns, entered_ns = perf_counter_ns(), self.entered_ns
        on_pause = self.on_pause
        yield
        if self.on_pause is on_pause:
            self.book_our_work(began_ns, perf_counter_ns(), entered_ns)

    def book_our_work(self, began_ns: int, ended_ns: int, entered_ns: int) -> None:
        """Book this time as profiler overhead, but for what has interrupted it.

        entered_ns: the cursor's when it began.
        """
        began_ns += self.entered_ns - entered_ns
        if ended_ns > began_ns:
            self.profiler.start_ns = began_ns
            self.end_entry(self.profiler, ended_ns)

    # Backward passes

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
            base = self.tree.entry_site(found, BACKWARD_NAME, "backward")
        if self.memory_owners is not None and not self.passes:
            self.memory_owners.backward_begins()
        started = BackwardPass(base, opens, request.makes_graph)
        self.backward.begin(self, started, request)

    def end_pass(self, outputs: object, failed: bool) -> None:
        """The backward pass that began last is over."""
        passes = [*self.passes]  # the handler of a signal may stop measuring
        if not passes or self.backward is None:
            return
        ended = passes[-1]
        if not failed and self._ends_at_once(ended):
            return
        now_ns = perf_counter_ns()
        ended.failed = failed
        self.fold_if_due()
        try:
            self.backward.end(self, ended, now_ns)
        finally:  # a callback may raise in there, and an interrupt come before it
            self._forget_pass(ended)
            if self.memory_owners is not None and not self.passes:
                self.memory_owners.backward_ended()
            if ended.opened_base and not ended.was_left:  # our work is no part of it
                self.close_entry(ended.base, outputs, now_ns)

    def _ends_at_once(self, ended: BackwardPass) -> bool:
        """Have the core end the pass; False if it cannot, and has done nothing."""
        assert self.backward is not None  # there is a pass
        has_ended = self.backward.finish(self, ended)
        if has_ended and self.memory_owners is not None and not self.passes:
            with self.our_work():
                self.memory_owners.backward_ended()
        return has_ended

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

    def drop_passes_after(self, count: int) -> None:
        """Forget all passes but the first `count`."""
        while len(self.passes) > count:
            self._forget_pass(self.passes[-1])

    def _forget_pass(self, ended: BackwardPass) -> None:
        """Forget the pass that began last; the core may have removed it already."""
        passes = self.passes
        if passes and passes[-1] is ended and self.backward is not None:
            self.backward.forget(self, ended)
        if passes and passes[-1] is ended:
            del passes[-1]

    def backward_site(self, around: Site, made_by: int | str) -> Site:
        """Where the backward of a call is booked, inside of `around`.

        made_by: the code of the call's site; or the name of the node, if the call that
            made it is not known.
        """
        if isinstance(made_by, int):
            return self.tree.backward_site(around, made_by)
        assert self.functions is not None  # else nodes are not booked by name
        return self.functions.site_of_node(around, made_by)

    # Optimizers

    def optimizer_pre(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Open a step of `optimizer`."""
        if not is_dynamo_compiling() and self.works_here():
            if self.site.is_loading:
                return
            name = type(optimizer).__name__
            site = self.entry_site(name, "optimizer", id(optimizer))
            if self.memory_owners is not None:
                self.memory_owners.meet_optimizer(optimizer, site.name)
            self.open_entry(site)

    def optimizer_post(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Close a step of `optimizer`."""
        if not is_dynamo_compiling() and self.works_here():
            end_ns, site = perf_counter_ns(), self.site
            if site.key != id(optimizer):
                site = self.unwind_to(optimizer)
            if site is not self.outside:
                self.close_entry(site, None, end_ns)
            if self.memory_owners is not None:
                with self.our_work():
                    self.memory_owners.optimizer_ended()

    def begin_closure(self) -> Callable[[], object]:
        """The optimizer that steps calls its closure, which is code of the program, and
        not the optimizer's time. Returns what is to be called at the end."""
        if not self.works_here() or self.site.phase != "optimizer":
            return lambda: None
        site = self.entry_site(OUTSIDE_NAME, "outside")
        self.open_entry(site)
        return partial(self.leave_entry, site)

    def is_in_optimizer(self) -> bool:
        """Whether an optimizer is stepping."""
        return any(site.phase == "optimizer" for site in self.open_sites())

    def abort_all(self, by_exception: bool) -> None:
        """Close all open calls: as of now, if an exception is just leaving them, else
        as of the last moment at which they are known to have run."""
        end_ns = perf_counter_ns() if by_exception else self.last_stamp_ns()
        self.abort_down_to(self.outside, end_ns)
        self.drop_passes_after(0)

    # Reading

    def times(self) -> Times:
        """What has been measured so far."""
        return Times(*self.read_times())

    def calls(self) -> Int64s:
        """How many calls have ended so far, by code."""
        self.log.fold()
        calls: Int64s = self.log.calls
        return calls


def _have_nodes_ended() -> bool:
    """Whether a pass is past its last node, and the engine runs its final callbacks."""
    return current_graph_task() != -1 and current_autograd_node() is None
