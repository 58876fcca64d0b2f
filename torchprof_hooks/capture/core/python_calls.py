"""The core in Python: calls that more is to be done for than for those of modules that
nobody is told of. These are methods of `Cursor`."""

from __future__ import annotations

from _thread import get_ident
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.core.span_log import FOLD_AT
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number
from torchprof_hooks.capture.torch_names.functions import shapes_of

if TYPE_CHECKING:
    from torchprof_hooks.capture.core.python import Cursor
    from torchprof_hooks.capture.functions.function_sites import FunctionSites
    from torchprof_hooks.capture.record.site import Site

#: Numbers of one owned interval: code of the site, low, high (exclusive).
FIELDS: Final = 3
#: How many intervals of loose calls (see `Ownership`) make a record.
LOOSE_AT: Final = 256


# Modules whose calls meters or callbacks are told of


def told_forward_pre(self: Cursor, module: torch.nn.Module, args: Any) -> None:
    """Open the call of `module`, and tell meters and callbacks."""
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
    if self.watches and site.is_entry:
        self.look_for_devices()
    site.low = next_sequence_number()
    site.start_ns = perf_counter_ns()
    self.site = site
    if self.reads_meters:
        self.meters.opened(site)  # type: ignore[union-attr]
    if self.callbacks is not None:
        self.callbacks.called(site, args)


def told_forward_post(  # noqa: C901
    self: Cursor, module: torch.nn.Module, args: Any, outputs: Any
) -> None:
    """Close the call of `module`, and tell meters and callbacks."""
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
    if self.reads_meters:
        self.meters.closing(site, end_ns)  # type: ignore[union-attr]
    self.site = site.caller
    if self.owns_nodes and (high := next_sequence_number()) != site.low:
        self.own((site.code, site.low, high))
    if outputs is None:
        self.count_if_aborted()
    if (site.is_entry or site.is_part) and self.owns_nodes:
        self.finish_entry(site, end_ns, outputs)
    else:
        self.book((site.code, site.start_ns, end_ns))
    if len(self.entries) > FOLD_AT:
        self.log.fold()
    if self.callbacks is not None:
        self.callbacks.returned(site, outputs)


# Entries: calls that interrupt their caller instead of being a part of it


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


# Functions


def call_function(
    self: Cursor, function: Any, args: Any, kwargs: dict[str, Any] | None
) -> Any:
    """Call a function that a mode was shown, and measure the call if the function is
    to be followed."""
    caller = self.site
    try:
        site = caller.functions[function]
    except (KeyError, TypeError):
        site = self.functions.find(self, function)
    if site is None:
        return function(*args, **(kwargs or {}))
    if self.tells_functions:
        return self.functions.call(self, site, function, args, kwargs or {})
    return self.measured(site, function, args, kwargs or {})


def measured(  # noqa: PLR0917
    self: Cursor,
    site: Site,
    function: Any,
    args: Any,
    kwargs: dict[str, Any],
    low: int = -1,
) -> Any:
    """Call `function`, and measure the call at the site that was found for it.

    low: number of the first autograd node of the call, if it has been made before.
    """
    if self.by_shapes and not site.is_hidden:
        shapes = shapes_of((*args, *kwargs.values()) if kwargs else args)
        try:
            site = site.by_shapes[shapes]
        except KeyError:
            sites = self.functions.sites
            site = sites.shaped(site, function, args, kwargs)
            if site.described is not None:
                function = partial(_call_first, sites, site, function)
    if self.watches and site.is_entry:
        self.look_for_devices()
    try:
        site.low = next_sequence_number() if low < 0 else low
        site.start_ns = perf_counter_ns()
        self.site = site
        if self.reads_meters:
            self.meters.opened(site)  # type: ignore[union-attr]
        outputs = function(*args, **kwargs)
        self.function_returned(site, perf_counter_ns(), outputs)
    except BaseException as error:
        self.functions.aborted(self, site, error)
        raise
    return outputs


def _call_first(
    sites: FunctionSites, site: Site, function: Any, *args: Any, **kwargs: Any
) -> Any:
    """Make the first call at a site, and show what it returns."""
    outputs = function(*args, **kwargs)
    sites.returned(site, outputs)
    return outputs


def function_returned(self: Cursor, site: Site, end_ns: int, outputs: object) -> None:
    """Close the call of a function at `site`."""
    if self.site is not site and not self.returns_to(site, end_ns):
        return  # measuring was stopped in the middle of the call
    if self.reads_meters:
        self.meters.closing(site, end_ns)  # type: ignore[union-attr]
    self.site = site.caller
    if (high := next_sequence_number()) != site.low:
        self.own((site.code, site.low, high))
    if site.is_entry:
        self.end_entry(site, end_ns, outputs)
    else:
        self.book((site.code, site.start_ns, end_ns))
    if len(self.entries) > FOLD_AT:
        self.log.fold()
