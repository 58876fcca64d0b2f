"""A tracker that reads meters where the host's clock is read."""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any, TypeVar

import torch
from torch.compiler import is_dynamo_compiling

from torchprof_hooks.capture.core import CORE
from torchprof_hooks.capture.core.span_log import FOLD_AT
from torchprof_hooks.capture.function_tracker import FunctionTracker
from torchprof_hooks.capture.meters import DeviceMeter, Meter
from torchprof_hooks.capture.site import Site
from torchprof_hooks.capture.torch_names.autograd import (
    next_sequence_number,
    sequence_number,
)
from torchprof_hooks.capture.torch_names.compiler import CompiledCall
from torchprof_hooks.capture.tracker import Tracker

SomeMeter = TypeVar("SomeMeter")


class MeterTracker(FunctionTracker):
    """Measures with more than the host's clock.

    Meters are read as near to the call as can be: nothing of ours is between a reading
    and the call. Reading takes time, which is kept out of the time of the call.

    A device that the program has not put into use yet is left out of it: until then it
    is looked for where an outermost call begins, or a module is called for the first
    time, and a program that never uses one pays for no reading of it.

    meters: what is read. If there is nothing, the core tells us nothing.
    asleep: meters of devices that are not in use yet.
    """

    #: Whether callbacks are told of moves, too.
    calls_back = False

    def __init__(self, meters: Sequence[Meter], **options: Any) -> None:
        super().__init__(**options)
        self.asleep = [meter for meter in meters if isinstance(meter, DeviceMeter)]
        self.meters = [m for m in meters if not isinstance(m, DeviceMeter)]
        self.watches = bool(self.asleep)
        self._announce()

    def _announce(self) -> None:
        """Have the core leave it to us to open and close, if there is anything to
        read."""
        self.is_told = bool(self.meters)
        self.tells_moves = self.is_told or self.calls_back

    # Forward. These repeat the lines of other classes instead of calling them, for the
    # reason that is given in `OwningCursor`.

    def told_forward_pre(self, module: torch.nn.Module, args: Any) -> None:
        """Open the call of `module`."""
        if is_dynamo_compiling() or (
            get_ident() != self.thread and not (self.passes and self.works_here())
        ):
            return
        try:
            site = self.site.children[id(module)]
        except KeyError:
            if self.looks_away_from(module):
                return
            site = self.find_site(module)
        if site.is_entry and self.asleep:
            self._look_for_devices()
        site.low = next_sequence_number()
        if self.is_told:
            site.start_ns = perf_counter_ns()  # as it may be asked for meanwhile
            caller, self.site = self.site, site
            self._opened(site, self._read(caller, caller))
        site.start_ns = perf_counter_ns()
        self.site = site

    def told_forward_post(  # noqa: C901
        self, module: torch.nn.Module, args: Any, outputs: Any
    ) -> None:
        """Close the call of `module`."""
        if is_dynamo_compiling() or (
            get_ident() != self.thread and not (self.passes and self.works_here())
        ):
            return
        site = self.site
        readings = self._read_before_end(site) if self.is_told else None
        end_ns = perf_counter_ns()
        if site.key != id(module):
            readings = None
            site = self.unwind_to(module)
            if site is self.outside:
                return
        self.site = site.caller
        high = next_sequence_number()
        if high != site.low:
            self.own((site.code, site.low, high))
        if outputs is None:
            self.count_if_aborted()
        if readings is not None:
            self._closed(site, readings)
        if site.is_entry:
            self.end_entry(site, end_ns, outputs)
            self.tell_of_pause(site, outputs, end_ns)
        else:
            self.book((site.code, site.start_ns, end_ns))
        if len(self._entries) > FOLD_AT:
            self.log.fold()

    if CORE.module is None:  # which asks us first; the core in Python does not
        forward_pre, forward_post = told_forward_pre, told_forward_post

    def entry_begins(self) -> None:
        """Nothing is being called, or what is interrupted by what begins."""
        self._look_for_devices()

    def find_site(self, module: torch.nn.Module) -> Site:
        """The site of a call of `module` (see the parent class)."""
        if self.asleep:  # calls around this one may have put a device into use
            self._look_for_devices()
        return super().find_site(module)

    def call(
        self,
        site: Site,
        function: Any,
        args: Any,
        kwargs: dict[str, Any],
        node: Any = None,
    ) -> Any:
        """Call `function`; measure it (see the parent class)."""
        if site.is_entry and self.asleep:
            self._look_for_devices()
        if not self.is_told:
            return super().call(site, function, args, kwargs, node)
        if self.by_shapes and not site.is_hidden:
            site = self.shaped(site, function, args, kwargs)
        try:
            caller = self.site
            site.low = next_sequence_number() if node is None else sequence_number(node)
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
        if self.asleep:
            self._look_for_devices()
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
        if self.asleep:
            self._look_for_devices()
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

    def moved(self, closed: list[Site], opened: list[Site]) -> None:
        """A pass has gone over to other owners (see the parent class)."""
        around = opened[0].caller if opened else closed[-1].caller
        readings = self._read(closed[0] if closed else around, around)
        for site in closed:
            self._closed(site, readings)
        now_ns = perf_counter_ns()
        for site in opened:
            self._opened(site, readings)
            site.start_ns = now_ns

    # Reading

    def start_meters(self) -> None:
        """Measuring begins, for the first time or again."""
        for meter in self.meters:
            meter.start()
        if self.asleep:
            self._look_for_devices()

    def _look_for_devices(self) -> None:
        """Read those devices, too, that have come into use. For calls that are open
        they are read now: what they do from here on is measured."""
        for meter in tuple(self.asleep):
            stamp = meter.read(self.site)
            if stamp is None:
                continue
            for site in self.open_sites():
                if site.readings is not None or not self.is_told:
                    site.readings = [*(site.readings or ()), stamp]
            self.asleep.remove(meter)
            self.meters.append(meter)
            self._announce()
        self.watches = bool(self.asleep)

    def _read(self, owner: Site, in_time_of: Site) -> list[Any]:
        if not self.is_told:
            return []
        start_ns = perf_counter_ns()
        readings = [meter.read(owner) for meter in self.meters]
        in_time_of.reading_ns += perf_counter_ns() - start_ns
        return readings

    def _read_before_end(self, site: Site) -> list[Any]:
        """The call at `site` is about to end, and is over by now."""
        start_ns = perf_counter_ns()
        readings = self._read(site, site.caller)
        site.start_ns += perf_counter_ns() - start_ns
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
