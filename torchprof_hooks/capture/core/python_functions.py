"""The core in Python: calls of functions. These are methods of `Cursor`."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from torchprof_hooks.capture.core.span_log import FOLD_AT
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number
from torchprof_hooks.capture.torch_names.functions import shapes_of

if TYPE_CHECKING:
    from torchprof_hooks.capture.core.python import Cursor
    from torchprof_hooks.capture.record.site import Site


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
        caller.passed_over += 1
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
            site = self.functions.sites.shaped(site, function, args, kwargs)
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
