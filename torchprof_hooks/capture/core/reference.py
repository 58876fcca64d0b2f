"""The reference core: what the numbers mean, in few lines of Python. It runs where
there is no native core, and tests compare the two.

A cursor says where one thread is in its tree of calls, and books what every call took.
It knows no names, no files and no reports, and reads nothing but the clock of the host:
all else that can be measured needs the native core. A derived class handles rare cases:
calls that are new, and calls that do not end in order.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import torch

from torchprof_hooks.capture.core.reference_nodes import Owner
from torchprof_hooks.capture.core.span_log import FOLD_AT, Int64s, SpanLog, times_of
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number

if TYPE_CHECKING:
    from torchprof_hooks.capture.backward.backward_pass import BackwardPass
    from torchprof_hooks.capture.record.site import Site
    from torchprof_hooks.capture.tracking.callbacks import CallListener

#: How many nodes are remembered: the newest. Older ones have no owner.
NODES_KEPT: Final = 1 << 18


class Cursor:
    """Where one thread is, and which autograd nodes its calls make: the counter of
    nodes is read before and after each call.

    Entries are calls that interrupt their caller instead of being a part of it: a
    module called from outside, an optimizer step, a batch that is waited for, and more.

    thread: the one that is followed.
    site: what the thread works for now; at first `outside`, of all calls.
    garbage: where Python's full collections of garbage are booked; None: nowhere.
    sites: all sites, by their codes.
    log: sums of the calls that have ended.
    passes: backward passes that run.
    owns_nodes: whether passes are followed, and divided among the owners of their
        nodes.
    callbacks: told when a module is `called`, after the call is open, and when it has
        `returned`, after the call is booked; None if nobody wants to know.
    on_pause: called with an entry that ended, when, and what it returned; of forwards,
        only for outermost ones. Or None.
    """

    site: Site
    outside: Site
    garbage: Site | None

    def __init__(self, *given: Any) -> None:
        self.thread = get_ident()
        self.garbage = None
        self.sites: list[Site] = []
        self.log = SpanLog()
        self.passes: list[BackwardPass] = []
        #: Time in entries so far; that of nested ones is counted once.
        self.entered_ns = 0
        self.on_pause: Callable[[Site, int, object], object] | None = None
        #: By thread: the innermost open call, and the owners of nodes by number.
        self._innermost: dict[int, Owner | None] = {}
        self._owners: dict[int, dict[int, Owner]] = {}
        #: Whether entries are left out of the time of the calls that they interrupt.
        self.gives_time_back = True
        self.owns_nodes = False
        self.callbacks: CallListener | None = None
        self.entries = self.log.entries
        self.book = self.log.entries.extend

    def works_here(self) -> bool:
        """Whether the running thread is the followed one."""
        return get_ident() == self.thread

    read_times = times_of

    if TYPE_CHECKING:  # what the derived class knows (see `Tracker`)

        def called_site(self, module: torch.nn.Module) -> Site | None: ...
        def is_open(self, called: object) -> bool: ...
        def unwind_to(self, called: object) -> Site: ...
        def count_if_aborted(self) -> None: ...
        def open_sites(self) -> Iterator[Site]: ...

    # Modules

    def forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Open the call of `module`."""
        if not self.works_here() or self.site.is_loading:
            return
        known = self.site.child(id(module))
        site = known or self.called_site(module)
        if site is None:
            self.site.ignored += self.is_open(module)
            return
        self.open_call(site)
        if self.callbacks is not None:
            self.callbacks.called(site, args)

    def forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """Close the call of `module`."""
        if not self.works_here() or self.site.is_loading:
            return
        end_ns, site = perf_counter_ns(), self.site
        if site.ignored and self.is_open(module):
            site.ignored -= 1
            return
        if site.key != id(module):
            site = self.unwind_to(module)
            if site is self.outside:
                return
        self.site = site.caller  # first: an interrupt must book no call twice
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
        site.low = next_sequence_number()
        site.start_ns = perf_counter_ns()
        self.site = site

    def close_entry(
        self, site: Site, outputs: object = None, end_ns: int | None = None
    ) -> None:
        """End the current entry; `outputs` is what its graph can be reached from.

        end_ns: when it ended, if that is not now.
        """
        if end_ns is None:
            end_ns = perf_counter_ns()
        self.site = site.caller
        self.finish_entry(site, end_ns, outputs)

    def finish_entry(
        self, site: Site, end_ns: int, outputs: object, is_told: bool = True
    ) -> None:
        """Book an entry, and call `on_pause`."""
        self.end_entry(site, end_ns)
        if is_told and self.on_pause is not None:
            self.on_pause(site, end_ns, outputs)

    def end_entry(self, site: Site, end_ns: int) -> None:
        """Take the entry's time out of the callers that it interrupted, then book it.
        After an interrupt in between, that time is on nobody."""
        taken_ns = self.gives_time_back and site.is_entry and end_ns - site.start_ns
        self.entered_ns += taken_ns
        caller = self.site
        while caller is not self.outside:
            caller.start_ns += taken_ns
            caller = caller.caller
        self.book((site.code, site.start_ns, end_ns))

    def open_call(self, site: Site) -> None:
        """Open a call of a module."""
        site.low, site.ignored = next_sequence_number(), 0
        if self.owns_nodes:
            self.own_from(site, site.low)
        site.start_ns = perf_counter_ns()
        self.site = site  # last: an interrupt before this line has opened nothing

    # Booking

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
        #: The meters that are read at each begin and end of a call.
        memory: Any
        device: Any
        functions: Any  # OperatorCalls; None: they are not followed
        look_for_device: Callable[[], None]
        read_memory: Callable[[], tuple[Int64s, ...]]
        owners_moved: Callable[[list[Site], list[Site]], None]
        #: Begins, or ends, hearing of this thread's operators (see `OperatorCalls`).
        hear_operators: Callable[[bool], None]
        #: What the newest pass is working for, and how many calls are open in it.
        pass_owner: Site | None
        open_backward: int
        #: Called when a pass begins; when hooks of a node run, before the engine tells
        #: of the node; and when a pass ends: returns when the last node ended, None if
        #: none has run.
        enter_pass: Callable[..., None]
        reach_node: Callable[[], None]
        leave_pass: Callable[[BackwardPass, bool], int | None]
        drop_pass: Callable[[BackwardPass], None]  # once Python has closed its calls
        #: Ends a pass that went well. False: something rare has happened, and nothing
        #: is done.
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
        """The call at `site` owns no nodes from number `high` on, and neither do calls
        that were left open inside of it."""
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
