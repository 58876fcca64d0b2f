"""The memory hook for modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch

from torchprof_hooks.hooks.tables import MemoryHookSummary, MemoryReport
from torchprof_hooks.instruments.memory.meter import MemoryMeter, meters_of
from torchprof_hooks.kernel.make_tracker import make_tracker
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.link_hooks.calls import MeasuredCalls, TrackedSite
from torchprof_hooks.profiles.names import MODULE_PHASES, ModuleGrouping


class MemoryProfileHook(MemoryReport, MeasuredCalls):
    """Measures the memory that every module takes, forward and backward.

    Args:
        device: what to measure: "cpu", "cuda" or "cuda:1"; by default CUDA's current
            device if the program has initialised CUDA by the time it enters the hook,
            else the CPU.
        by: sums are by class name ("class") or by qualified name ("module").
        history_size: how many calls `call_history` keeps. The sums are exact anyhow.

    Raises:
        MemoryUnavailableError: the memory cannot be measured here (a RuntimeError that
            says why: the CPU's needs the native core, say).
        ValueError: no such device, unknown `by`, or a negative `history_size`.

    Example:
        >>> hook = MemoryProfileHook(by="module")
        >>> with hook:
        ...     train_step(batch)
        >>> hook.print_report()
          LinkName  UsedBytes  AcquiredBytes  PeakBytes  RetainedBytes  Occurrence
            MLP.l1    12.00MB        20.00MB     4.00MB         2.00MB           2
               MLP    14.25MB        22.00MB     4.25MB         2.50MB           2

    LinkName is the module. UsedBytes: what the allocator handed out during its calls,
    forward and backward, with those of inner modules. AcquiredBytes: what the allocator
    took from the device meanwhile. PeakBytes: the highest rise of the memory in use
    within one call. RetainedBytes: how much the memory in use rose, on average, from
    begin to end of a forward call: its output, and what it keeps for backward.
    Occurrence: the number of calls, where a backward counts as one. Since modules
    contain each other, the bytes of different names overlap (``summary(own=True)``
    leaves inner modules out); `total_used_bytes` and `total_acquired_bytes` count every
    byte once. For how the CPU is measured, see the hook of the same name for functions.
    """

    name = "MemoryProfileHook"

    def __init__(
        self,
        device: str | torch.device | None = None,
        *,
        by: ModuleGrouping = "class",
        history_size: int = 100_000,
    ) -> None:
        MemoryReport.__init__(self, device)
        MeasuredCalls.__init__(self, by, history_size)

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
            own: whether to leave out inner calls, which have sums of their own.
                `peak_bytes` and `retained_bytes` are always those of the whole call.
        """
        summary: dict[str, MemoryHookSummary] = {}
        forwards, retained = Counter[str](), Counter[str]()
        for place, meter in self._places():
            name, code = self._name(*place), place.site.code
            zero = MemoryHookSummary(
                used_bytes=0, acquired_bytes=0, peak_bytes=0, occurrence=0
            )
            sums = summary.setdefault(name, zero)
            calls = int(place.tracker.log.calls[code])
            sums["used_bytes"] += int(meter.log.used[code])
            sums["acquired_bytes"] += int(meter.log.acquired[code])
            sums["peak_bytes"] = max(sums["peak_bytes"], int(meter.log.peak[code]))
            sums["occurrence"] += calls
            if place.site.phase == "forward":
                forwards[name] += calls
                retained[name] += int(meter.log.retained[code])
        for name, sums in summary.items():
            sums["retained_bytes"] = retained[name] // max(forwards[name], 1)
        if own:
            self._take_out_inner(summary)
        return summary

    def _make_tracker(self, everywhere: bool) -> Tracker:
        meter = self._new_meter()
        tracker = make_tracker(self, everywhere, backward=True, meters=[meter])
        self._records.follow(tracker, meter.log)
        return tracker

    def _is_call(self, site: Site) -> bool:
        return site.module is not None and site.phase in MODULE_PHASES

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

    def _take_out_inner(self, summary: dict[str, MemoryHookSummary]) -> None:
        for place, meter in self._places():
            outer = next(self._around(place.site), None)
            name = self._name(place.tracker, outer) if outer is not None else ""
            if name in summary:  # else: no outer call, or none has ended yet
                sums = summary[name]
                sums["used_bytes"] -= int(meter.log.used[place.site.code])
                sums["acquired_bytes"] -= int(meter.log.acquired[place.site.code])
