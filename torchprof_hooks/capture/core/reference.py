"""The reference core: what the numbers mean, in few lines of Python. It runs where
there is no native core, and tests compare the two.

A cursor says where one thread is in its tree of calls, and books what every call took.
It knows no names, no files and no reports. Rare cases are left to a derived class:
calls that are new, and calls that do not end in order.
"""

from __future__ import annotations

import sys
import threading
import warnings
from _thread import get_ident
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.core.reference_meters import ReadsMeters
from torchprof_hooks.capture.core.span_log import FIELDS, FOLD_AT, SpanLog, times_of
from torchprof_hooks.capture.torch_names.autograd import (
    current_graph_task,
    next_sequence_number,
)

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.backward_pass import BackwardPass
    from torchprof_hooks.capture.record.site import Site
    from torchprof_hooks.capture.tracking.callbacks import LinkCallbacks
    from torchprof_hooks.measure.allocator_counter import Reading

#: So many nodes are remembered, the newest: those of older graphs are nobody's.
NODES_KEPT: Final = 1 << 18
#: How many nested calls may close at once, about: so far back `is_booked` looks.
_CLOSED_AT_ONCE: Final = 256
#: The generation that a collection of all objects reports.
_FULL: Final = 2


class Node:
    """What a cursor knows of one place in the tree of calls.

    At most one call per node is open at a time in a thread, so the state of the open
    call lives here, not on a stack.

    code: position in the cursor's list of nodes.
    caller: the node that the thread goes back to; the outermost one is its own caller.
    key: id of the module, optimizer or data loader that is called here; else 0.
    is_entry: whether a call here interrupts its caller instead of being a part of it.
    is_called: whether calls here are forwards, or recomputations of forwards.
    is_outer: whether modules called from here are outermost ones: the node stands for
        the program itself, or for an optimizer.
    is_function: whether a function is called here.
    is_loading: whether data is loaded here, and modules that are called from here are
        a part of that.
    sees_operators: whether operators that are called from here are functions.
    is_described: for a function: whether its work is to be found in its first call.
    children: nodes of the modules called from here, by id of the module; elsewhere than
        in this core, see `child` and the methods below it.
    start_ns: when the open call began; moved forward by what interruptions took.
    low: number of the first autograd node that the open call can own.
    owner: by which these nodes are found again; None: it owns none.
    heard: how many autograd nodes of passes ran here.
    cut: how many calls here did not run to their end.
    readings: what the meters of the open call said when it began; None: nothing.
    peak_bytes: the highest level of memory in use since it began.
    reading_ns: how much of the node's time measuring took: reading meters, finding
        nodes for new calls, beginning and ending passes, booking entries and telling
        of their ends.
    """

    __slots__ = (
        "caller",
        "children",
        "code",
        "cut",
        "heard",
        "is_called",
        "is_described",
        "is_entry",
        "is_function",
        "is_loading",
        "is_outer",
        "key",
        "low",
        "owner",
        "peak_bytes",
        "reading_ns",
        "readings",
        "sees_operators",
        "start_ns",
    )

    def __init__(self, *given: Any) -> None:
        self.caller: Site = self  # type: ignore[assignment]
        self.children: dict[int, Site] = {}
        self.code = self.key = self.start_ns = self.low = 0
        self.heard = self.cut = self.reading_ns = self.peak_bytes = 0
        self.is_entry = self.is_called = self.is_function = self.is_loading = False
        self.is_outer = self.sees_operators = self.is_described = False
        self.owner: Owner | None = None
        self.readings: tuple[Reading | None, Any] | None = None

    def child(self, key: int) -> Site | None:
        """The node of calls of the module whose id is `key`, from here."""
        return self.children.get(key)

    def add_child(self, key: int, child: Site) -> None:
        """Calls of the module whose id is `key` are calls at `child`, from here."""
        self.children[key] = child

    def forget_child(self, key: int) -> None:
        """The next call of a module with this id, from here, is a new one."""
        self.children.pop(key, None)

    if TYPE_CHECKING:  # of the native core alone

        def forget_operators(self) -> None:
            """Operators that are called from here are to be placed anew."""

    def continue_call_of(self, other: Any) -> None:
        """The call that is open at `other` turns out to be one at this node."""
        self.key = other.key
        self.start_ns = other.start_ns
        self.low = other.low
        self.owner, other.owner = other.owner, None
        self.readings, other.readings = other.readings, None
        self.peak_bytes = other.peak_bytes
        if self.owner is not None:
            self.owner.code = self.code


class Owner:
    """A call that owns autograd nodes: those that are made while it is the innermost
    one that is open.

    around: the call around it.
    thread: the one that makes the nodes, and numbers its own.
    is_backward: whether it is the backward of a call, in a pass that makes a graph.
    """

    __slots__ = ("around", "code", "is_backward", "is_open", "low", "thread")

    def __init__(
        self, code: int, low: int, around: Owner | None, thread: int, is_backward: bool
    ) -> None:
        self.code = code
        self.low = low
        self.around = around
        self.thread = thread
        self.is_backward = is_backward
        self.is_open = True

    def is_passed_over(self) -> bool:
        """Whether it owns what the pass makes that runs, and nothing that is run in a
        pass inside of it."""
        return self.is_open and self.is_backward


class Cursor(ReadsMeters):
    """Where one thread is, and which autograd nodes its calls make: the counter of
    nodes is read before and after each call.

    Entries are calls that interrupt their caller instead of being a part of it: a
    module called from outside, an optimizer step, a batch that is waited for, and more.

    thread: the one that is followed.
    site: what the thread works for now; at first `outside`, of all calls.
    sites: all sites, by their codes.
    log: sums of the calls that have ended.
    passes: backward passes that run; the engine may run parts of them in other threads.
    owns_nodes, divides: whether passes are followed, and whether they are divided among
        the owners of their nodes.
    callbacks: told when a module is `called`, after the call is open, and when it has
        `returned`, after the call is booked; None if nobody wants to know.
    functions: which functions are followed; None: none.
    on_pause: told, in three arguments, of an entry that ended, when, and what it
        returned: of forwards, those called from outside of all others alone. Or None.
    sees_outer_alone: whether it is shown only calls from sites that are `is_outer`.
    by_shapes: whether calls of functions are told apart by the shapes of inputs.
    """

    site: Site
    outside: Site

    def __init__(self, *given: Any) -> None:
        super().__init__()
        self.thread = get_ident()
        self.sites: list[Site] = []
        self.log = SpanLog()
        self.passes: list[BackwardPass] = []
        #: Time in entries so far; of nested ones, it is not counted twice.
        self.entered_ns = 0
        self.on_pause: Callable[[Site, int, object], object] | None = None
        #: By thread: the innermost open call, and the owners of nodes by number.
        self._innermost: dict[int, Owner | None] = {}
        self._owners: dict[int, dict[int, Owner]] = {}
        #: Whether entries are left out of the time of the calls that they interrupt.
        self.gives_time_back = True
        self.owns_nodes = self.divides = False
        self.callbacks: LinkCallbacks | None = None
        self.functions: Any = None  # FunctionCalls; their methods need a Tracker
        self.by_shapes = self.sees_outer_alone = False
        self.entries = self.log.entries
        self.book = self.log.entries.extend

    def works_here(self) -> bool:
        """Whether the running thread works for the one that is followed: on devices,
        the engine runs passes in threads of its own."""
        thread = get_ident()
        if thread == self.thread or not self.passes:
            return thread == self.thread
        task = current_graph_task()
        return task != -1 and any(
            p.thread == thread or p.task == task for p in self.passes
        )

    read_times = times_of

    if TYPE_CHECKING:  # what the derived class knows (see `Tracker`)

        def called_site(self, module: torch.nn.Module) -> Site | None: ...
        def unwind_to(self, called: object) -> Site: ...
        def close_left_calls(self) -> None: ...
        def count_if_aborted(self) -> None: ...
        def open_sites(self) -> Iterator[Site]: ...

    # Modules

    def forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Open the call of `module`."""
        # Dynamo, when it traces this, must see nothing but the return.
        if is_dynamo_compiling() or not self.works_here() or self.site.is_loading:
            return
        known = self.site.child(id(module))
        site = known or self.called_site(module)
        if site is None:
            return
        if site.is_entry or known is None:
            self.look_for_device()
        site.low = next_sequence_number()
        if self.divides:
            self.own_from(site, site.low)
        site.start_ns = perf_counter_ns()
        self.site = site  # last: an interrupt before this line has opened nothing
        self.read_at_begin(site)
        if self.callbacks is not None:
            self.callbacks.called(site, args)

    def forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """Close the call of `module`."""
        if is_dynamo_compiling() or not self.works_here() or self.site.is_loading:
            return
        end_ns, site = perf_counter_ns(), self.site
        if site.key != id(module):
            site = self.unwind_to(module)
            if site is self.outside:
                return
        self.read_at_end(site, end_ns)
        self.site = site.caller  # first: an interrupt loses time, and books none twice
        self.own_until(site, next_sequence_number())
        if outputs is None:
            self.count_if_aborted()
        if site.is_entry and self.owns_nodes:
            is_told = self.site is self.outside
            self.finish_entry(site, end_ns, outputs, is_told)
        else:
            self.book((site.code, site.start_ns, end_ns))
        self.fold_if_due()
        if self.callbacks is not None:
            self.callbacks.returned(site, outputs)

    # Entries: calls that interrupt their caller instead of being a part of it

    def open_entry(self, site: Site) -> None:
        """Begin an entry."""
        self.look_for_device()
        site.low = next_sequence_number()
        site.start_ns = perf_counter_ns()
        self.site = site
        try:
            self.read_at_begin(site)
        except BaseException:  # the handler of a signal has raised
            self.site = site.caller  # nobody closes it
            raise

    def close_entry(
        self, site: Site, outputs: object = None, end_ns: int | None = None
    ) -> None:
        """End the current entry; `outputs` is what its graph can be reached from.

        end_ns: when it ended, if that is not now.
        """
        if end_ns is None:
            end_ns = perf_counter_ns()
        self.read_at_end(site, end_ns)
        self.site = site.caller
        self.finish_entry(site, end_ns, outputs)

    def finish_entry(
        self, site: Site, end_ns: int, outputs: object, is_told: bool = True
    ) -> None:
        """Book an entry, and tell of its end. What that takes is a cost in its
        caller."""
        began_ns = perf_counter_ns()
        self.end_entry(site, end_ns)
        if is_told and self.on_pause is not None:
            self.on_pause(site, end_ns, outputs)
        site.caller.reading_ns += perf_counter_ns() - began_ns

    def end_entry(self, site: Site, end_ns: int) -> None:
        """Give the interrupted callers their time back, then book the entry. An
        interrupt in between leaves time that nobody is given."""
        taken_ns = self.gives_time_back and site.is_entry and end_ns - site.start_ns
        self.entered_ns += taken_ns
        caller = self.site
        while caller is not self.outside:
            caller.start_ns += taken_ns
            caller = caller.caller
        self.book((site.code, site.start_ns, end_ns))

    # Functions

    def open_call(self, site: Site) -> None:
        """Open the call of a function."""
        if site.is_entry:
            self.look_for_device()
        site.low = next_sequence_number()
        if self.divides:
            self.own_from(site, site.low)
        site.start_ns = perf_counter_ns()
        self.site = site
        self.read_at_begin(site)

    def close_call(self, site: Site, end_ns: int) -> None:
        """Close the call of a function: the innermost one that is open."""
        self.read_at_end(site, end_ns)
        self.site = site.caller
        self.own_until(site, next_sequence_number())
        if site.is_entry:
            self.end_entry(site, end_ns)
        else:
            self.book((site.code, site.start_ns, end_ns))
        self.fold_if_due()

    # Booking

    def is_booked(self, site: Site) -> bool:
        """Whether the call that is open at `site` is booked already: an interrupt may
        have come between booking and closing it."""
        newest = self.entries[-FIELDS * _CLOSED_AT_ONCE :]
        calls = zip(newest[::FIELDS], newest[1::FIELDS], strict=False)
        return (site.code, site.start_ns) in calls

    def last_booked_ns(self) -> int:
        """When the last call ended; 0 if the log was folded since."""
        newest = self.entries[-1:]  # a copy: a signal's handler may empty the log
        return newest[0] if newest else 0

    def fold_if_due(self) -> None:
        """Keep the log short."""
        if len(self.entries) > FOLD_AT:
            self.log.fold()

    # Backward passes: nodes have hooks (see `HookedPasses`)

    if TYPE_CHECKING:  # of the native core alone
        #: Hear of the operators that this thread calls (see `OperatorCalls`), or not.
        hear_operators: Callable[[bool], None]
        #: What the newest pass is working for, and how many calls are open in it.
        pass_owner: Site | None
        open_backward: int
        #: Are told of the begin of a pass, of a node that Python sees first, and of the
        #: end: that returns when the last node ended, None if none has run.
        enter_pass: Callable[..., None]
        engine_ends: Callable[[], None]
        leave_pass: Callable[[BackwardPass, bool], int | None]
        drop_pass: Callable[[BackwardPass], None]  # is dead, and its calls are closed
        #: Does all that is to be done at the end of a pass that went well. False:
        #: something rare has happened, nothing is done.
        finish_pass: Callable[[BackwardPass], bool]

    # Owners of nodes

    def own_from(self, site: Site, low: int, is_backward: bool = False) -> None:
        """The call at `site` owns the nodes that this thread makes from number `low`
        on, as far as no call inside of it does."""
        thread = get_ident()
        around = self._innermost.get(thread) or self._innermost.get(self.thread)
        owner = Owner(site.code, low, around, thread, is_backward)
        site.owner = self._innermost[thread] = owner

    def own_until(self, site: Site, high: int) -> None:
        """It does so no longer, and neither do calls inside of it that were left open;
        the next node has this number."""
        owner, site.owner = site.owner, None
        if owner is None or not owner.is_open:
            return
        known = self._owners.setdefault(owner.thread, {})
        inner: list[Owner] = []
        around = self._innermost.get(owner.thread)
        while around is not None and around is not owner:
            inner.append(around)
            around = around.around
        for ended in (*inner, owner):
            ended.is_open = False
            for number in range(ended.low, high):
                known.setdefault(number, ended)
        around = owner.around
        is_here = around is not None and around.thread == owner.thread
        self._innermost[owner.thread] = around if is_here else None
        while len(known) > NODES_KEPT:
            del known[next(iter(known))]

    def owners_of(
        self, number: int, is_last: bool = False
    ) -> list[tuple[object, int]] | None:
        """The calls that own the node of this number, outermost first: of each,
        something that is equal for this call alone, and its code. None if several
        threads have made such a node. is_last: the node will not run again."""
        around = self._innermost.get(self.thread)
        while around is not None and (around.low > number or around.is_passed_over()):
            around = around.around
        take = dict.pop if is_last else dict.__getitem__
        found = [take(k, number) for k in self._owners.values() if number in k]
        own = [each for each in found if each.thread == self.thread]
        if around is not None and not own:
            found.append(around)
        if len(found) > 1:
            return None
        chain: list[tuple[object, int]] = []
        owner = found[0] if found else None
        while owner is not None:
            if not owner.is_passed_over():
                chain.append((owner, owner.code))
            owner = owner.around
        return chain[::-1]


class Interceptor:
    """Shows calls of modules to cursors: a pair of hooks on all modules."""

    def __init__(self, getter: object = None) -> None:
        self._shown: tuple[Cursor, ...] = ()
        self._watcher: Callable[[torch.nn.Module, Any], object] | None = None

    def show_to(
        self,
        cursors: tuple[Cursor, ...],
        watcher: Callable[[torch.nn.Module, Any], object] | None = None,
    ) -> None:
        """Show all calls to these cursors, in this order.

        watcher: called before each call; cursors that come meanwhile see the call.
        """
        self._shown, self._watcher = cursors, watcher

    def forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Show the begin of a call."""
        if is_dynamo_compiling():
            return
        if self._watcher is not None:
            self._watcher(module, args)
        for cursor in self._shown:
            if cursor.sees_outer_alone and cursor.site.key == id(module):
                cursor.close_left_calls()
            if _is_seen_by(cursor):
                cursor.forward_pre(module, args)

    def forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """Show the end of a call to all cursors, even if one raises. Those with
        `on_pause` come last: calling it may end the steps of others."""
        if is_dynamo_compiling():
            return
        raised: BaseException | None = None
        for cursor in sorted(self._shown, key=_has_pause):
            if not (_is_seen_by(cursor) or cursor.site.key == id(module)):
                continue
            try:
                cursor.forward_post(module, args, outputs)
            except BaseException as error:
                if raised is not None:
                    warnings.warn(f"after a hook has raised: {error!r}", stacklevel=2)
                raised = raised or error
        if raised is not None:
            raise raised


def _has_pause(cursor: Cursor) -> bool:
    return cursor.on_pause is not None


def _is_seen_by(cursor: Cursor) -> bool:
    """Whether `cursor` is to see a call that is made now. A call in a backward pass is
    not one from outside, whether or not anybody follows the pass."""
    if not cursor.sees_outer_alone:
        return True
    return cursor.site.is_outer and current_graph_task() == -1


def on_unseen_pass(callback: Callable[[], object] | None) -> None:
    """Have `callback` called when a backward pass begins that was not started from
    Python. Only the native core can: the engine tells it of nodes."""


def seen_pass_begins() -> int:
    """The pass that begins in this thread was started from Python, so it is no unseen
    one. Returns what `seen_pass_ends` is to be given."""
    return 0


def seen_pass_ends(before: int) -> None:
    """The pass that `seen_pass_begins` was called for is over."""


#: The type of a callback in ``gc.callbacks``.
AroundCollection = Callable[[str, dict[str, Any]], None]


def around_collections(told: Callable[[int], object]) -> AroundCollection | None:
    """A callback for ``gc.callbacks`` that calls `told` at the end of each full
    collection, with the nanoseconds that it took.

    None with several threads before Python 3.12: a collection may begin there while
    torch iterates over its hooks, and a callback in Python lets other threads run. If
    one of them changes the hooks, torch raises an error. The native core's callback
    lets no thread run; it tells of collections in the main thread alone there.
    """
    if sys.version_info < (3, 12) and threading.active_count() > 1:
        return None
    began_ns = 0  # no begin was seen yet

    def around_collection(moment: str, about: dict[str, Any]) -> None:
        nonlocal began_ns
        if about["generation"] < _FULL:
            return
        if moment == "start":
            began_ns = perf_counter_ns()
        elif began_ns:
            told(perf_counter_ns() - began_ns)

    return around_collection
