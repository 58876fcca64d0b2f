"""Takes what measuring itself took out of the times of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torchprof_hooks.profiles.cells import CellKey, Cells, add_cell
from torchprof_hooks.profiles.names import PROFILER_NAME
from torchprof_hooks.profiles.totals import Totals

_PROFILER: Final[CellKey] = ((PROFILER_NAME,), "profiler")


def overhead_ns(item: tuple[CellKey, Totals]) -> int:
    """What measuring took of the own time of a cell: of the profiler's, all."""
    (_, phase), totals = item
    return totals.self_ns if phase == "profiler" else totals.overhead_ns


def without_overhead(cells: Cells) -> Cells:
    """The same cells without what measuring took in their time, which becomes time of
    the profiler: own times still add up to the wall time.

    A cost is an estimate; one that is larger than the time it was spent in, is all of
    that time.
    """
    kept: dict[CellKey, Totals] = {}
    taken_ns = 0
    for key, totals in cells.items():
        own_ns = min(totals.overhead_ns, max(totals.self_ns, 0))
        taken_ns += own_ns
        kept[key] = replace(totals, self_ns=totals.self_ns - own_ns, overhead_ns=0)
    if taken_ns:
        add_cell(kept, _PROFILER, Totals(self_ns=taken_ns))
    return kept
