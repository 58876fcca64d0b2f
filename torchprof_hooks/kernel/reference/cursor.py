"""The reference core: what the numbers mean, in few lines of Python. It runs where
there is no native core, and tests compare the two.

A cursor says where one thread is in its tree of calls, and books what every call took.
It knows no names, no files and no reports, and reads nothing but the clock of the host:
all else that can be measured needs the native core. A derived class handles rare cases:
calls that are new, and calls that do not end in order.
"""

from __future__ import annotations

import operator
import sys
import warnings
from _thread import get_ident
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from torchprof_hooks.kernel.reference.attribution import Owners
from torchprof_hooks.kernel.reference.node import Node
from torchprof_hooks.kernel.reference.span_log import FOLD_AT, Int64s, SpanLog, Times
from torchprof_hooks.kernel.torch_names.autograd import next_sequence_number
from torchprof_hooks.kernel.torch_names.modules import IMPLEMENTATION, is_asking


class Cursor(Owners):
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
    callbacks: notified when a module is `called`, after the call is open, and when it
        has `returned`, after the call is booked; None if nobody wants to know.
    on_pause: called with an entry that ended, when, and what it returned; of forwards,
        only for outermost ones. Or None.
    """

    site: Node
    outside: Node
    garbage: Node | None
    #: What the native core reads, or calls, at each begin and end of a call.
    memory: Any = None
    device: Any = None
    functions: Any = None

    def __init__(self, *given: Any) -> None:
        super().__init__()
        self.thread = get_ident()
        self.garbage = None
        self.sites: list[Any] = []
        self.log = SpanLog()
        self.passes: list[Any] = []
        #: Time in entries so far; that of nested ones is counted once.
        self.entered_ns = 0
        self.on_pause: Callable[[Any, int, object], object] | None = None
        #: Whether entries are left out of the time of the calls that they interrupt.
        self.gives_time_back = True
        self.owns_nodes = False
        self.callbacks: Any = None
        self.entries = self.log.entries
        self.book = self.log.entries.extend

    def works_here(self) -> bool:
        """Whether the running thread is the followed one."""
        return get_ident() == self.thread

    def read_times(self) -> Times:
        """What was measured so far. If another thread asks, a call that ends meanwhile
        is missing."""
        log = self.log
        log.fold()
        sums = (
            log.calls.copy(),
            log.total_ns.copy(),
            log.min_ns.copy(),
            log.max_ns.copy(),
        )
        squares = list(log.squares)
        now_ns, interrupted_ns, open_ns = perf_counter_ns(), 0, list[int]()
        for site in self.open_sites():
            so_far_ns = max(now_ns - site.start_ns - interrupted_ns, 0)
            open_ns += site.code, so_far_ns
            interrupted_ns += so_far_ns if site.is_entry else 0
        return Times(*sums, squares, np.array(open_ns, np.int64))

    if TYPE_CHECKING:  # what the derived class knows (see `Tracker`)

        def called_site(self, module: torch.nn.Module) -> Node | None: ...
        def is_open(self, called: object) -> bool: ...
        def unwind_to(self, called: object) -> Node: ...
        def count_if_aborted(self) -> None: ...
        def open_sites(self) -> Iterator[Node]: ...

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
            notifies = self.site is self.outside
            self.finish_entry(site, end_ns, outputs, notifies)
        else:
            self.book((site.code, site.start_ns, end_ns))
        self.fold_if_due()
        if self.callbacks is not None:
            self.callbacks.returned(site, outputs)

    # Entries: calls that interrupt their caller instead of being a part of it

    def open_entry(self, site: Node) -> None:
        """Begin an entry."""
        site.low = next_sequence_number()
        site.start_ns = perf_counter_ns()
        self.site = site

    def close_entry(
        self, site: Node, outputs: object = None, end_ns: int | None = None
    ) -> None:
        """End the current entry; `outputs` is what its graph can be reached from.

        end_ns: when it ended, if that is not now.
        """
        if end_ns is None:
            end_ns = perf_counter_ns()
        self.site = site.caller
        self.finish_entry(site, end_ns, outputs)

    def finish_entry(
        self, site: Node, end_ns: int, outputs: object, notifies: bool = True
    ) -> None:
        """Book an entry, and call `on_pause`."""
        self.end_entry(site, end_ns)
        if notifies and self.on_pause is not None:
            self.on_pause(site, end_ns, outputs)

    def end_entry(self, site: Node, end_ns: int) -> None:
        """Take the entry's time out of the callers that it interrupted, then book it.
        After an interrupt in between, that time is on nobody."""
        taken_ns = self.gives_time_back and site.is_entry and end_ns - site.start_ns
        self.entered_ns += taken_ns
        caller = self.site
        while caller is not self.outside:
            caller.start_ns += taken_ns
            caller = caller.caller
        self.book((site.code, site.start_ns, end_ns))

    def open_call(self, site: Node) -> None:
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
        look_for_device: Callable[[], None]
        read_memory: Callable[[], tuple[Int64s, ...]]
        owners_moved: Callable[[list[Any], list[Any]], None]
        #: Begins, or ends, observing this thread's operators (see `OperatorCalls`).
        observe_operators: Callable[[bool], None]
        #: What the newest pass is working for, and how many calls are open in it.
        pass_owner: Node | None
        open_backward: int
        #: Called when a pass begins; when hooks of a node run, before the engine tells
        #: of the node; and when a pass ends: returns when the last node ended, None if
        #: none has run.
        enter_pass: Callable[..., None]
        reach_node: Callable[[], None]
        leave_pass: Callable[[Any, bool], int | None]
        drop_pass: Callable[[Any], None]  # once Python has closed its calls
        #: Ends a pass that went well. False: something rare has happened, and nothing
        #: is done.
        finish_pass: Callable[[Any], bool]


# How calls of modules, and collections of garbage, are seen


class Interceptor(property):
    """Notifies cursors of calls of modules. It takes the place of the attribute that
    torch calls, if it is not None, in place of a module's own implementation of calls.

    It is a property whose getter returns None: this is what torch.compile and
    torch.export trace, and so they make the same with and without it.
    """

    def __init__(self, getter: Callable[[Any], None]) -> None:
        super().__init__(getter)
        self._notified: tuple[Cursor, ...] = ()
        self._watcher: Callable[[torch.nn.Module, Any], object] | None = None

    def notify(
        self,
        cursors: tuple[Cursor, ...],
        watcher: Callable[[torch.nn.Module, Any], object] | None = None,
    ) -> None:
        """From now on, notify these cursors of all calls, in this order.

        watcher: called before each call; cursors that it adds are notified of the call.
        """
        self._notified, self._watcher = cursors, watcher

    def __get__(self, module: Any, kind: type | None = None) -> Any:
        if module is None:
            return None
        is_wanted = self._watcher is not None or any(map(_works_here, self._notified))
        if is_wanted and is_asking(sys._getframe(1)):
            return partial(self._call, module)
        return _held(module).get(IMPLEMENTATION)

    def __set__(self, module: Any, value: Any) -> None:
        _held(module)[IMPLEMENTATION] = value

    def __delete__(self, module: Any) -> None:
        if IMPLEMENTATION not in _held(module):
            raise AttributeError(IMPLEMENTATION)
        del _held(module)[IMPLEMENTATION]

    def _call(self, module: Any, /, *args: Any, **kwargs: Any) -> Any:
        begun: list[Cursor] = []
        try:
            self._begin(begun, module, args)
            outputs = _implementation(module)(*args, **kwargs)
        except BaseException as error:
            _end(begun, module, args, None)
            if error.__traceback__ is not None:  # without our frame
                error.__traceback__ = error.__traceback__.tb_next
            raise
        _end(begun, module, args, outputs)
        return outputs

    def _begin(self, begun: list[Cursor], module: torch.nn.Module, args: Any) -> None:
        """Notify cursors of the begin of a call; they then are in `begun`."""
        if self._watcher is not None:
            self._watcher(module, args)
        for cursor in filter(_works_here, self._notified):
            begun.append(cursor)
            cursor.forward_pre(module, args)

    def forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Notify cursors of the begin of a block of code that counts as a call."""
        self._begin([], module, args)

    def forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """Notify cursors of the end of such a block."""
        _end([*filter(_works_here, self._notified)], module, args, outputs)


_works_here: Final = operator.methodcaller("works_here")


def _held(module: Any) -> dict[str, Any]:
    """The attributes of `module`, read without code of its class."""
    held: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return held


def _implementation(module: Any) -> Callable[..., Any]:
    """What torch would call without us."""
    own: Callable[..., Any] | None = _held(module).get(IMPLEMENTATION)
    return module._call_impl if own is None else own


def _end(begun: list[Cursor], module: Any, args: Any, outputs: Any) -> None:
    """Notify all cursors of the end of a call, even if one raises. Those with
    `on_pause` come last: calling it may end the steps of others."""
    raised: BaseException | None = None
    for cursor in sorted(begun, key=_has_pause):
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


def carry_no_ended() -> None:
    """Take passes that have ended off this thread: the native core has torch carry them
    into the engine's threads."""


#: The generation that a collection of all objects reports.
_FULL: Final = 2
#: When the full collection that runs began, and the cursors that it interrupts.
_began_ns: Final[list[int]] = []
_interrupted: Final[list[Cursor]] = []


def interrupt_by_collections(cursors: tuple[Cursor, ...]) -> None:
    """From now on, full collections of garbage interrupt the calls that are open in
    these cursors, if the collection is in the thread that a cursor follows."""
    _interrupted[:] = cursors


def around_collection(
    moment: str,
    about: dict[str, Any],
    is_ending: Callable[[], bool] = sys.is_finalizing,
) -> None:
    """For ``gc.callbacks``."""
    if about["generation"] < _FULL or is_ending():  # then, modules are empty
        return
    now_ns = perf_counter_ns()
    if moment == "start":
        _began_ns[:] = [now_ns]
    elif _began_ns:
        began_ns = _began_ns.pop()
        for cursor in _interrupted:
            if cursor.garbage is not None and cursor.works_here():
                cursor.garbage.start_ns = began_ns
                cursor.end_entry(cursor.garbage, now_ns)
