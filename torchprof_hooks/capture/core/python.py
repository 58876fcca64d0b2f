"""The core in Python: the reference, and what runs where there is no native one.

A cursor says where one thread is in its tree of calls, and books what every call took.
It knows no names, no files and no reports. Rare cases are left to a derived class:
calls that are new, and calls that do not end in order.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.core.python_calls import (
    FIELDS,
    call_function,
    close_entry,
    end_entry,
    finish_entry,
    function_returned,
    measured,
    open_entry,
    told_forward_post,
    told_forward_pre,
)
from torchprof_hooks.capture.core.span_log import FOLD_AT, SpanLog, times_of
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.backward_pass import BackwardPass
    from torchprof_hooks.capture.record.site import Site
    from torchprof_hooks.capture.tracking.callbacks import LinkCallbacks
    from torchprof_hooks.capture.tracking.meters.meters import Meters


class Cursor:
    """Where one thread is, and which autograd nodes its calls make: the counter of
    nodes is read before and after each call (see `ownership`).

    Entries are calls that interrupt their caller instead of being a part of it: a
    module called from outside, an optimizer step, a batch that is waited for, and more.

    `forward_pre` and `forward_post` are what torch calls (see `hooks_of`): nothing in
    them is slower than it has to be, and everything rare is elsewhere.

    thread: the one that is followed.
    site: what the thread works for now; at first `outside`, of all calls.
    sites: all sites, by their codes.
    log: sums of the calls that have ended.
    passes: backward passes that run; the engine may run parts of them in other threads.
    owns_nodes, divides: whether passes are followed, and whether they are divided among
        the owners of their nodes.
    meters: told of each call that begins (`opened`), has just ended (`closing`), and of
        changes of owner in passes (`moved`), if `reads_meters`; and asked to
        `look_for_devices` where an entry begins, or a call that is new, if `watches`.
    memory, device: meters that the native core reads itself, as it does the clock: of
        memory, and of stamps in a device's queue; else None.
    callbacks: told when a module is `called`, after the call is open, and when it has
        `returned`, after the call is booked; None if nobody wants to know.
    functions: asked to `find` the site of a function that was not met yet, and told of
        one that is `aborted`; None if no functions are followed.
    sees_outer_alone: whether a seam shows it only calls from sites that are `is_outer`.
    by_shapes: whether calls of functions are told apart by the shapes of inputs.
    tells_functions: whether the functions that a mode shows are called by
        `functions.call`, which tells callbacks of them.
    """

    site: Site
    outside: Site

    def __init__(self, *given: Any) -> None:
        self.thread = get_ident()
        self.sites: list[Site] = []
        self.log = SpanLog()
        self.passes: list[BackwardPass] = []
        #: Time in entries so far; of nested ones, it is not counted twice.
        self.entered_ns = 0
        #: Told when a backward pass ends, or an entry that was called from outside of
        #: all others, unless it failed.
        self.on_pause: Callable[[Site, int], object] | None = None
        #: Of calls that have ended, and are in no record yet.
        self.intervals: list[int] = []
        #: Whether entries are left out of the time of the calls that they interrupt.
        self.gives_time_back = True
        self.owns_nodes = self.divides = self.reads_meters = False
        self.watches = False
        self.meters: Meters | None = None
        self.memory: Any = None
        self.device: Any = None
        self.callbacks: LinkCallbacks | None = None
        self.functions: Any = None  # FunctionCalls; their methods need a Tracker
        self.by_shapes = self.tells_functions = self.sees_outer_alone = False
        self.own = self.intervals.extend  # takes code of the site, low, high
        self.entries = self.log.entries
        self.book = self.log.entries.extend

    def forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Open the call of `module`."""
        # Dynamo, when it traces this, must see nothing but the return.
        if is_dynamo_compiling() or (
            get_ident() != self.thread and not (self.passes and self.works_here())
        ):
            return
        try:
            site = self.site.children[id(module)]
        except KeyError:
            found = self.called_site(module)
            if found is None:
                return
            site = found
        site.low = next_sequence_number()
        site.start_ns = perf_counter_ns()
        self.site = site  # last: an interrupt before this line has opened nothing

    def forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """Close the call of `module`."""
        if is_dynamo_compiling() or (
            get_ident() != self.thread and not (self.passes and self.works_here())
        ):
            return
        end_ns = perf_counter_ns()
        site = self.site
        if site.key != id(module):
            site = self.unwind_to(module)
            if site is self.outside:
                return
        self.site = site.caller  # first: an interrupt loses time, and books none twice
        high = next_sequence_number()
        if high != site.low:
            self.own((site.code, site.low, high))
        if outputs is None:
            self.count_if_aborted()
        if site.is_entry or site.is_part:
            self.finish_entry(site, end_ns, outputs)
        else:
            self.book((site.code, site.start_ns, end_ns))
        if len(self.entries) > FOLD_AT:
            self.log.fold()

    # Two more pairs of hooks, with less and with more to do. They repeat the code: one
    # more call in each hook would cost as much as reading the counters.

    def forward_pre_alone(self, module: torch.nn.Module, args: Any) -> None:
        """Open the call of `module`, whose nodes nobody asks for."""
        if is_dynamo_compiling() or (
            get_ident() != self.thread and not (self.passes and self.works_here())
        ):
            return
        try:
            site = self.site.children[id(module)]
        except KeyError:
            found = self.called_site(module)
            if found is None:
                return
            site = found
        site.start_ns = perf_counter_ns()
        self.site = site

    def forward_post_alone(
        self, module: torch.nn.Module, args: Any, outputs: Any
    ) -> None:
        """Close the call of `module`, whose nodes nobody asks for."""
        if is_dynamo_compiling() or (
            get_ident() != self.thread and not (self.passes and self.works_here())
        ):
            return
        end_ns = perf_counter_ns()
        site = self.site
        if site.key != id(module):
            site = self.unwind_to(module)
            if site is self.outside:
                return
        self.site = site.caller
        self.book((site.code, site.start_ns, end_ns))
        if outputs is None:
            self.count_if_aborted()
        if len(self.entries) > FOLD_AT:
            self.log.fold()

    told_forward_pre = told_forward_pre
    told_forward_post = told_forward_post
    open_entry = open_entry
    close_entry = close_entry
    finish_entry = finish_entry
    end_entry = end_entry
    call_function = call_function
    measured = measured
    function_returned = function_returned
    read_times = times_of

    def works_here(self) -> bool:
        """Whether the running thread works for the one that is followed."""
        return get_ident() == self.thread or bool(self.passes and self.works_in_pass())

    if TYPE_CHECKING:  # what the derived class knows (see `ThreadCalls`, `Tracker`)

        def works_in_pass(self) -> bool: ...
        def called_site(self, module: torch.nn.Module) -> Site | None: ...
        def look_for_devices(self) -> None: ...
        def unwind_to(self, module: torch.nn.Module) -> Site: ...
        def returns_to(self, site: Site, end_ns: int) -> bool: ...
        def count_if_aborted(self) -> None: ...
        def open_sites(self) -> Iterator[Site]: ...
        def keep_loose(self) -> None: ...
        def keep_intervals(self, low: int, outputs: object) -> None: ...
        def tell_of_pause(self, site: Site, outputs: object, end_ns: int) -> None: ...

    # Booking

    def is_booked(self, site: Site) -> bool:
        """Whether the call that is open at `site` is booked already: an interrupt may
        have come between booking and closing it."""
        newest = self.entries[-FIELDS * _CLOSED_AT_ONCE :]
        calls = zip(newest[::FIELDS], newest[1::FIELDS], strict=False)
        return (site.code, site.start_ns) in calls

    def last_booked_ns(self) -> int:
        """When the last call ended; 0 if the log was folded since."""
        return self.entries[-1] if self.entries else 0

    def fold_if_due(self) -> None:
        """Keep the log short."""
        if len(self.entries) > FOLD_AT:
            self.log.fold()

    # Backward passes: in Python, they are planned (see `PlannedPasses`)

    def runs_task(self, task: int) -> bool:
        """Whether this core is told of a pass with the engine's number `task`."""
        return False

    if TYPE_CHECKING:  # of the native core alone, for `Passes`
        #: What the newest pass is working for, and how many calls are open in it.
        pass_owner: Site | None
        open_backward: int
        #: Are told of the begin of a pass, of a node that Python sees first, and of the
        #: end: that returns when the last node ended, None if none has run.
        enter_pass: Callable[..., None]
        engine_ends: Callable[[], None]
        leave_pass: Callable[[BackwardPass, bool], int | None]
        drop_pass: Callable[[BackwardPass], None]  # is dead, and its calls are closed
        #: Do at once all that is to be done for passes outside of everything. Most are,
        #: and many small functions of Python would be slow there, with the processor's
        #: caches cold for them. False: something rare has happened, nothing is done.
        begin_outer_pass: Callable[..., None]
        end_outer_pass: Callable[[BackwardPass, Site | None, object], bool]
        #: Makes a record of intervals, to live as long as their calls' graph.
        add_record: Callable[[list[int], int, int], Any]

    # Intervals of calls that ended

    @property
    def interval_count(self) -> int:
        """How many intervals are in no record yet."""
        return len(self.intervals) // FIELDS

    def take_intervals(self, low: int) -> list[int]:
        """Remove the intervals from number `low` on, and return them."""
        intervals = self.intervals
        first = len(intervals)
        while first and intervals[first - 2] >= low:
            first -= FIELDS
        taken, intervals[first:] = intervals[first:], []
        return taken


#: How many nested calls may close at once, about: so far back `is_booked` looks.
_CLOSED_AT_ONCE: Final = 256

Hook = Callable[..., None]


def hooks_of(cursor: Cursor) -> tuple[Hook, Hook]:
    """What torch is to call before and after each module."""
    if cursor.reads_meters or cursor.watches or cursor.callbacks is not None:
        return cursor.told_forward_pre, cursor.told_forward_post
    if not cursor.owns_nodes:
        return cursor.forward_pre_alone, cursor.forward_post_alone
    return cursor.forward_pre, cursor.forward_post
