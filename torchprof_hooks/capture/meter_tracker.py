"""A tracker that reads meters where the host's clock is read."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, TypeVar

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.backward_pass import BackwardPass
from torchprof_hooks.capture.backward_plan import Move
from torchprof_hooks.capture.function_tracker import FunctionTracker
from torchprof_hooks.capture.meters import Meter
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.torch_names.autograd import (
    next_sequence_number,
)
from torchprof_hooks.capture.torch_names.compiler import CompiledCall
from torchprof_hooks.capture.tracker import Tracker

SomeMeter = TypeVar("SomeMeter")


class MeterTracker(FunctionTracker):
    """Measures with more than the host's clock.

    Meters are read as near to the call as can be: nothing of ours is between a reading
    and the call. Reading takes time, which is kept out of the time of the call.
    """

    def __init__(self, meters: Sequence[Meter], **options: Any) -> None:
        super().__init__(**options)
        self.meters = meters

    # Forward

    def forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Open the call of `module`."""
        if is_dynamo_compiling() or not self.works_here():
            return
        caller = self.site
        super().forward_pre(module, args)
        if self.site.key == id(module) and self.site is not caller:
            self._opened(self.site, self._read(caller, caller))
            self.site.start_ns = perf_counter_ns()

    def forward_post(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        """Close the call of `module`."""
        if is_dynamo_compiling() or not self.works_here():
            return
        site = self.site
        start_ns = perf_counter_ns()
        readings = self._read(site, site.caller)
        site.start_ns += perf_counter_ns() - start_ns
        super().forward_post(module, args, outputs)
        if site.key == id(module):
            self._closed(site, readings)

    def call(self, site: Site, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call `function`; measure it."""
        if self.by_shapes and not site.is_hidden:
            site = self.shaped(site, function, args, kwargs)
        try:
            caller = self.site
            site.low = next_sequence_number()
            site.start_ns = perf_counter_ns()
            self.site = site
            self._opened(site, self._read(caller, caller))
            site.start_ns = perf_counter_ns()
            outputs = function(*args, **kwargs)
            end_ns = perf_counter_ns()
            readings = self._read(site, caller)
            self.function_returned(site, end_ns, outputs)
            self._closed(site, readings)
        except BaseException as error:
            self.abort_function(site, error)
            raise
        return outputs

    # Entries, and moves in backward

    def open_entry(self, site: Site) -> None:
        """Begin an entry (see the parent class)."""
        readings = self._read(self.site, self.site)
        super().open_entry(site)
        self._opened(site, readings)

    def close_entry(self, site: Site, outputs: object = None) -> None:
        """End the current entry (see the parent class)."""
        readings = self._read(site, site)
        super().close_entry(site, outputs)
        self._closed(site, readings)

    def begin_region(self, call: CompiledCall) -> Site | None:
        """A function made by torch.compile begins (see the parent class)."""
        caller = self.site
        site = super().begin_region(call)
        if site is not None:
            self._opened(site, self._read(caller, caller))
            site.start_ns = perf_counter_ns()
        return site

    def end_region(self, site: Site, call: CompiledCall) -> None:
        """The function that `begin_region` gave a site for is over."""
        readings = self._read(site, site)
        super().end_region(site, call)
        self._closed(site, readings)

    def _make_move(self, move: Move, running: BackwardPass, now_ns: int) -> None:
        around = move.opens[0].caller if move.opens else move.owner.site
        readings = self._read(self.site, around)
        super()._make_move(move, running, now_ns)
        for site in move.closes:
            self._closed(site, readings)
        if move.opens:
            now_ns = perf_counter_ns()
            for site in move.opens:
                self._opened(site, readings)
                site.start_ns = now_ns

    # Reading

    def start_meters(self) -> None:
        """Measuring begins, for the first time or again."""
        for meter in self.meters:
            meter.start()

    def _read(self, owner: Site, in_time_of: Site) -> list[Any]:
        start_ns = perf_counter_ns()
        readings = [meter.read(owner) for meter in self.meters]
        in_time_of.reading_ns += perf_counter_ns() - start_ns
        return readings

    def _opened(self, site: Site, readings: list[Any]) -> None:
        site.readings = readings
        site.peak_bytes = 0

    def _closed(self, site: Site, readings: list[Any]) -> None:
        starts, site.readings = site.readings, None
        if starts is not None:
            for meter, start, end in zip(self.meters, starts, readings, strict=True):
                meter.book(site, start, end)


def meters_of(tracker: Tracker, kind: type[SomeMeter]) -> list[SomeMeter]:
    """The meters of a tracker that are of one kind."""
    if not isinstance(tracker, MeterTracker):
        return []
    return [meter for meter in tracker.meters if isinstance(meter, kind)]
