"""What the memory hooks of modules and of functions have in common."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TextIO, TypedDict

import torch

from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.call_records import TrackedSite
from torchprof_hooks.capture.tracking.meters.meters import (
    MemoryMeter,
    memory_meter,
    meters_of,
)
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.hooks.hook import CallSums
from torchprof_hooks.profiles.names import ByteUnit
from torchprof_hooks.profiles.options import check_file, keyword_only


class _Required(TypedDict):
    used_bytes: int
    acquired_bytes: int
    peak_bytes: int
    occurrence: int


class MemoryHookSummary(_Required, total=False):
    """Sums for one name, in bytes, and the number of calls, `occurrence`.

    `peak_bytes` is the maximum over calls, and `retained_bytes`, which only hooks on
    modules have, the mean over forward calls.
    """

    retained_bytes: int


class MemoryReport(ABC):
    """A hook that prints a table of bytes.

    name, _name_header: of the hook, and the header of the names in its table.
    device: whose memory to measure; see `memory_meter`.
    """

    name: str
    _name_header: str

    def __init__(self, device: str | torch.device | None) -> None:
        memory_meter(device)  # raises now; the device may be initialised later
        self._device = device

    @abstractmethod
    def summary(self, *, own: bool = False) -> dict[str, MemoryHookSummary]:
        """Sums by name, in the order in which the first calls ended.

        Args:
            own: whether to leave out the bytes of inner calls, which have sums of their
                own. Peaks are always those of the whole call.
        """

    @keyword_only("unit", "file")
    def print_report(
        self, *, unit: ByteUnit = "auto", file: TextIO | None = None
    ) -> None:
        """Print the summary as a table.

        Args:
            unit: "B", "KB", "MB", ... (of 1024 each), "auto" (one unit for each column,
                chosen for its largest value) or "auto_foreach" (one for each value).
            file: where to print; standard output by default.

        Raises:
            TypeError, ValueError: a parameter is not one of these.
        """
        from torchprof_hooks.documents.export.hook_table import render_bytes

        check_file("file", file)
        report = render_bytes(
            self.name, self._name_header, self.summary(), unit, self._note()
        )
        print(report, file=file or sys.stdout)

    def _new_meter(self) -> MemoryMeter:
        return memory_meter(self._device)

    def _note(self) -> str:
        meter = self._new_meter()
        kind = f"{meter.name} (caching allocator)"
        if meter.counts_tensors:
            kind = "tensors on the CPU, by the thread that calls, to the byte"
        return f"Memory of {kind}: what was handed out; freed bytes count, too."


class MemoryHook(MemoryReport, CallSums):
    """Adds up the memory that calls take, by name."""

    def __init__(self, device: str | torch.device | None, history_size: int) -> None:
        MemoryReport.__init__(self, device)
        CallSums.__init__(self, history_size)

    @property
    def call_history(self) -> list[tuple[str, int, int, int]]:
        """(name, used bytes, acquired bytes, depth) of the newest calls, in the order
        in which they ended. Depth is the number of enclosing calls."""
        return [
            (self._name(*place), used, acquired, len([*self._around(place.site)]))
            for place, (used, acquired, *_) in self._records.newest()
        ]

    def total_used_bytes(self) -> int:
        """Used bytes of all calls. Bytes in nested calls count once."""
        return sum(int(meter.log.used[code]) for code, meter in self._outermost())

    def total_acquired_bytes(self) -> int:
        """Acquired bytes of all calls. Bytes in nested calls count once."""
        return sum(int(meter.log.acquired[code]) for code, meter in self._outermost())

    def summary(self, *, own: bool = False) -> dict[str, MemoryHookSummary]:
        """Sums by name, in the order in which the first calls ended.

        Args:
            own: whether to leave out the bytes of inner calls, which have sums of their
                own. Peaks are always those of the whole call.
        """
        summary: dict[str, MemoryHookSummary] = {}
        for place, meter in self._places():
            self._add_up(summary, place, meter)
        if own:
            self._take_out_inner(summary)
        return summary

    def _follow(self, tracker: Tracker) -> None:
        (meter,) = meters_of(tracker, MemoryMeter)
        self._records.follow(tracker, meter.log)

    def _places(self) -> Iterator[tuple[TrackedSite, MemoryMeter]]:
        for place in self._records.places():
            (meter,) = meters_of(place.tracker, MemoryMeter)
            if self._is_call(place.site) and place.site.code < len(meter.log.used):
                yield place, meter

    def _outermost(self) -> Iterator[tuple[int, MemoryMeter]]:
        """The codes of sites whose calls are in no other counted call, with meters."""
        for place, meter in self._places():
            if not any(self._around(place.site)):
                yield place.site.code, meter

    def _around(self, site: Site) -> Iterator[Site]:
        """The sites of the calls around those at `site`, whose bytes they include."""
        while site.caller is not site:
            site = site.caller
            if self._is_call(site):
                yield site

    def _add_up(
        self,
        summary: dict[str, MemoryHookSummary],
        place: TrackedSite,
        meter: MemoryMeter,
    ) -> None:
        code = place.site.code
        sums = summary.setdefault(
            self._name(*place),
            {"used_bytes": 0, "acquired_bytes": 0, "peak_bytes": 0, "occurrence": 0},
        )
        sums["used_bytes"] += int(meter.log.used[code])
        sums["acquired_bytes"] += int(meter.log.acquired[code])
        sums["peak_bytes"] = max(sums["peak_bytes"], int(meter.log.peak[code]))
        sums["occurrence"] += int(place.tracker.log.calls[code])

    def _take_out_inner(self, summary: dict[str, MemoryHookSummary]) -> None:
        for place, meter in self._places():
            outer = next(self._around(place.site), None)
            name = self._name(place.tracker, outer) if outer is not None else ""
            if name in summary:  # else: no outer call, or none has ended yet
                sums = summary[name]
                sums["used_bytes"] -= int(meter.log.used[place.site.code])
                sums["acquired_bytes"] -= int(meter.log.acquired[place.site.code])
