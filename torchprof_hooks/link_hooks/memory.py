"""The memory hook for modules."""

from __future__ import annotations

from collections import Counter

import torch

from torchprof_hooks.capture.record.site import Site
from torchprof_hooks.capture.tracking.make_tracker import make_tracker
from torchprof_hooks.capture.tracking.tracker import Tracker
from torchprof_hooks.hooks.memory import MemoryHook, MemoryHookSummary
from torchprof_hooks.link_hook import LinkHook
from torchprof_hooks.profiles.names import (
    MODULE_PHASES,
    ModuleGrouping,
    check_grouping,
)


class MemoryProfileHook(MemoryHook, LinkHook):
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
    _name_header = "LinkName"

    def __init__(
        self,
        device: str | torch.device | None = None,
        *,
        by: ModuleGrouping = "class",
        history_size: int = 100_000,
    ) -> None:
        check_grouping(by)
        super().__init__(device, history_size)
        self.by = by

    def _make_tracker(self, everywhere: bool) -> Tracker:
        tracker = make_tracker(
            self, everywhere, backward=True, meters=[self._new_meter()]
        )
        self._follow(tracker)
        return tracker

    def _is_call(self, site: Site) -> bool:
        return site.module is not None and site.phase in MODULE_PHASES

    def _name(self, tracker: Tracker, site: Site) -> str:
        if self.by == "module":
            return site.name
        return tracker.names.infos[site.name].class_name

    def summary(self, *, own: bool = False) -> dict[str, MemoryHookSummary]:
        """Sums by name, in the order in which the first calls ended.

        Args:
            own: whether to leave out inner calls, which have sums of their own.
                `peak_bytes` and `retained_bytes` are always those of the whole call.
        """
        summary = super().summary(own=own)
        calls, retained = Counter[str](), Counter[str]()
        for place, meter in self._places():
            if place.site.phase == "forward":
                name, code = self._name(*place), place.site.code
                calls[name] += int(place.tracker.log.calls[code])
                retained[name] += int(meter.log.retained[code])
        for name, sums in summary.items():
            sums["retained_bytes"] = retained[name] // max(calls[name], 1)
        return summary
