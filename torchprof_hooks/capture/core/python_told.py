"""The core in Python: calls of modules that meters or callbacks are told of. These are
methods of `Cursor`."""

from __future__ import annotations

from _thread import get_ident
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.core.span_log import FOLD_AT
from torchprof_hooks.capture.torch_names.autograd import next_sequence_number

if TYPE_CHECKING:
    from torchprof_hooks.capture.core.python import Cursor


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
