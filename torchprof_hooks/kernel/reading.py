"""What an instrument may look at, and do, in the thread that is followed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from torchprof_hooks.kernel.callbacks import CallListener
from torchprof_hooks.kernel.interruptions import Interruption
from torchprof_hooks.kernel.reference.span_log import Int64s
from torchprof_hooks.kernel.tree import CallTree, Site
from torchprof_hooks.profiles.names import Phase


class Step(NamedTuple):
    """What ended between the last two moments at which no call was open.

    number: that of the training step; 0: it was the first one, or there were several,
        or evaluation calls.
    may_be_slow: whether it took longer than most, as far as is known by then.
    """

    number: int
    duration_ns: int
    may_be_slow: bool


class Reading(Protocol):
    """One thread, as instruments see it. A site is a place in its tree of calls; its
    code (`Site.code`) is where arrays of sums have what belongs to it.

    sites: all sites so far, by their codes.
    tree: what finds sites, and makes new ones; `tree.names` are those of modules.
    site, outside: where the thread is now, and where it is while no call is open.
    waited_ns: how long the thread has waited for other processes. An instrument that
        knows adds to it.
    tail: set it where it is known that what comes after the last node of the backward
        pass that comes, or of those inside of it, interrupts that: its name and phase.
    garbage: the site of Python's full collections; None: nobody observes these.
    memory, device, functions: for instruments that the native core calls, or reads, at
        each begin and end of a call (native/meters/, native/calls/operators.h).
    """

    sites: list[Site]
    tree: CallTree
    site: Site
    outside: Site
    waited_ns: int
    tail: tuple[str, Phase] | None
    garbage: Site | None
    memory: Any
    device: Any
    functions: Any

    def works_here(self) -> bool:
        """Whether the running thread is the followed one, or works for it, as threads
        of the autograd engine do."""

    def open_sites(self) -> Iterator[Site]:
        """The current site and those around it, innermost first, without `outside`."""

    def calls(self) -> Int64s:
        """How many calls have ended so far, by code."""

    def booked_ns(self, in_step: bool = False) -> Int64s:
        """Host time of calls that have ended, by code: so far, or since the last moment
        between two steps."""

    def own_ns(self, booked_ns: Int64s) -> list[int]:
        """Own time of each site: `booked_ns` without the calls inside."""

    def own(self, sums: Int64s) -> list[int]:
        """The same of other sums, in which interruptions are a part of the calls that
        they interrupt."""

    # What an instrument may do

    def interruption_site(self, name: str, phase: Phase) -> Site:
        """Where something is booked that interrupts the current call."""

    def interrupt(
        self, name: str, phase: Phase, *, of: object = None, is_call: bool = True
    ) -> Interruption:
        """Interrupt the current call: what the thread does from now on has a row of its
        own, and is no part of the call, until the interruption ends.

        of: what interrupts: an optimizer, or what is loaded from.
        is_call: whether this counts as a call in its row.
        """

    def end_interruption(self, of: object, ended_ns: int) -> None:
        """End the interruption by `of`, if it goes on, and what an exception has left
        open in it."""

    def move(self, left: Site | None, entered: Site | None) -> None:
        """End a part of the current call, and begin another one: at one moment. Parts
        are sites that are called from the call's, and are not notified of.

        left: the part that ends, which is the current site; None: the call itself is.
        entered: the part that begins; None: the call itself goes on.
        """

    def end_parts(self, parts: Sequence[Site], call: Site) -> None:
        """End what is open inside of `call`, if that goes on, and count each of `parts`
        as called."""

    def close_left(self) -> None:
        """Close interruptions that exceptions have left without notice."""

    def abort(self) -> None:
        """Close the current call: an exception has left it without notice."""

    def listen(self, listener: CallListener, does: bool) -> None:
        """Begin, or end, notifying `listener` of calls of modules. All calls take
        longer meanwhile."""

    def our_work(self) -> AbstractContextManager[None]:
        """What this thread does inside is profiler overhead."""

    def observe_operators(self, does: bool, /) -> None:
        """Begin, or end, having `functions` called for this thread's operators."""

    def read_memory(self) -> tuple[Int64s, ...]:
        """What `memory` has added up: used, acquired, retained, peak, by code."""

    def look_for_device(self) -> None:
        """Begin to read `device`, if the program uses it by now."""
