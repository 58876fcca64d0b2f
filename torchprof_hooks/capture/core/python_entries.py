"""Entries: calls that interrupt their caller instead of being a part of it. These are
methods of `Cursor`."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Final

from torchprof_hooks.capture.torch_names.autograd import next_sequence_number

if TYPE_CHECKING:
    from torchprof_hooks.capture.core.python import Cursor
    from torchprof_hooks.capture.record.site import Site

#: Numbers of one owned interval: code of the site, low, high (exclusive).
FIELDS: Final = 3
#: How many intervals of loose calls (see `Ownership`) make a record.
LOOSE_AT: Final = 256


def open_entry(self: Cursor, site: Site) -> None:
    """Begin an entry."""
    if self.watches:
        self.look_for_devices()
    site.low = next_sequence_number()
    site.start_ns = perf_counter_ns()
    self.site = site
    if self.reads_meters:
        try:
            self.meters.opened(site)  # type: ignore[union-attr]
        except BaseException:
            self.site = site.caller  # nobody closes it
            raise


def close_entry(
    self: Cursor, site: Site, outputs: object = None, end_ns: int | None = None
) -> None:
    """End the current entry; `outputs` is what its graph can be reached from.

    end_ns: when it ended, if that is not now.
    """
    if end_ns is None:
        end_ns = perf_counter_ns()
    if self.reads_meters:
        self.meters.closing(site, end_ns)  # type: ignore[union-attr]
    self.site = site.caller
    self.finish_entry(site, end_ns, outputs)


def finish_entry(self: Cursor, site: Site, end_ns: int, outputs: object) -> None:
    """Book an entry, and tell of its end. What that takes is a cost in its caller."""
    began_ns = perf_counter_ns()
    self.end_entry(site, end_ns, outputs)
    self.tell_of_pause(site, outputs, end_ns)
    site.caller.reading_ns += perf_counter_ns() - began_ns


def end_entry(self: Cursor, site: Site, end_ns: int, outputs: object) -> None:
    """Give the interrupted callers their time back, then book the entry, and keep the
    intervals that it owns. An interrupt in between leaves time that nobody is given."""
    taken_ns = self.gives_time_back and site.is_entry and end_ns - site.start_ns
    self.entered_ns += taken_ns
    is_inside_call = False
    caller = self.site
    while caller is not self.outside:
        caller.start_ns += taken_ns
        is_inside_call |= caller.is_called and not caller.is_frame
        caller = caller.caller
    self.book((site.code, site.start_ns, end_ns))
    if not self.intervals or is_inside_call:
        return  # the record of the call around takes the intervals, too
    if site.is_function and self.site is self.outside:
        if len(self.intervals) > FIELDS * LOOSE_AT:  # a record each would be too many
            self.keep_loose()
    else:
        self.keep_intervals(site.low, outputs)
