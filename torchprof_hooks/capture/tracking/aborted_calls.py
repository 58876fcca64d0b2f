"""Calls that do not end in order: an exception or an interrupt went through them. The
functions that are not private are methods of `ThreadCalls`."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from torchprof_hooks.capture.record.site import NO_MODULE, Site
from torchprof_hooks.capture.torch_names.modules import error_of_call, owners_around
from torchprof_hooks.capture.torch_names.torch_utils import STOPS_RECOMPUTATION

if TYPE_CHECKING:
    from torchprof_hooks.capture.tracking.thread_calls import ThreadCalls


def unwind_to(self: ThreadCalls, module: torch.nn.Module) -> Site:
    """Make the call of `module` the current one again, closing calls inside it that
    were left by an exception that torch's hooks do not see. `outside` if that call is
    not open: it began before the thread was followed."""
    if not self.is_open(module):
        return self.outside
    last_ns = self.last_stamp_ns()
    while self.site.key != id(module):
        self.abort_call(last_ns)
    return self.site


def returns_to(self: ThreadCalls, site: Site, end_ns: int) -> bool:
    """Close what was left open inside of `site`; False if `site` is not open any
    more itself: measuring was stopped inside of it."""
    if self.site is not site:
        if all(open_site is not site for open_site in self.open_sites()):
            return False
        self.abort_down_to(site, end_ns)
    return True


def leave_entry(self: ThreadCalls, site: Site, outputs: object = None) -> None:
    """What was begun at `site` is done: end it, if it is still open."""
    if self.returns_to(site, perf_counter_ns()):
        self.close_entry(site, outputs)


def drop_dead_calls(self: ThreadCalls, beginning: object = None) -> None:
    """Close calls that are no longer on the Python stack. torch calls no post-hook
    when a forward is left by KeyboardInterrupt or another BaseException.

    beginning: the module or optimizer, or what loads data, whose call may be on the
        stack already, but is not open yet.
    """
    if self.site is self.outside:
        return
    calls = list(_calls_on_stack(self))
    frames = iter(owners_around(beginning))
    # Frames of calls that are not followed may lie in between.
    alive = 0
    while alive < len(calls) and calls[-1 - alive].key in frames:
        alive += 1
    if alive < len(calls):
        self.abort_down_to(calls[-1 - alive].caller, self.last_stamp_ns())


def _calls_on_stack(self: ThreadCalls) -> Iterator[Site]:
    """Open sites that a frame of this thread must exist for, innermost first.
    Backward sites have no frame of their own; calls around a pass belong to the code
    that started it, and are checked when the pass is over."""
    floor = self.outside
    if self.passes and self.backward is not None:
        floor = self.backward.owner_of(self, self.passes[-1])
    for site in self.open_sites():
        if site is floor:
            return
        if site.key != NO_MODULE:
            yield site


def abort_call(self: ThreadCalls, end_ns: int) -> None:
    """Close the current call, which an exception went through."""
    site = self.site
    self.aborted_calls += 1
    if self.callbacks is not None:
        self.callbacks.aborted(site)
    self.site = site.caller
    end_ns = max(end_ns, site.start_ns)
    if site.is_entry:
        self.end_entry(site, end_ns, None)
    # An interrupt may have come in the middle of a move, after the call was booked.
    elif site.phase != "backward" or not self.is_booked(site):
        self.book((site.code, site.start_ns, end_ns))


def abort_down_to(self: ThreadCalls, site: Site, end_ns: int) -> None:
    """Close calls inside `site` that an exception left open."""
    while self.site is not site and self.site is not self.outside:
        self.abort_call(end_ns)


def abort_all(self: ThreadCalls, by_exception: bool) -> None:
    """Close whatever is open: as of now, if an exception is just leaving it, else as of
    the last moment at which it is known to have run."""
    end_ns = perf_counter_ns() if by_exception else self.last_stamp_ns()
    self.abort_down_to(self.outside, end_ns)


def count_if_aborted(self: ThreadCalls) -> None:
    """After a forward without outputs: count it as aborted if it has raised."""
    error = error_of_call()
    if error is not None and type(error).__name__ != STOPS_RECOMPUTATION:
        self.aborted_calls += 1


def last_stamp_ns(self: ThreadCalls) -> int:
    """The latest moment at which the current call is known to have been running:
    what came after belongs to nobody, rather than to a guess."""
    return max(self.site.start_ns, self.last_booked_ns())
