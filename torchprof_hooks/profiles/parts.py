"""The parts of a run: the start-up, until its first training step has ended; the loop
after it; and the steps of the loop that were not measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from torchprof_hooks.profiles.cells import CellKey, Cells, add_cell, sum_of_own_ns
from torchprof_hooks.profiles.step_times import NO_STEP_TIMES, StepTimes
from torchprof_hooks.profiles.totals import NOTHING, Totals

PartName = Literal["start-up", "loop", "unmeasured"]
_ORDER: Final[tuple[PartName, ...]] = get_args(PartName)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a run. The parts of one run do not overlap.

    name: "start-up": the first training step of each run, with what came before it
        (in a whole program, evaluation calls before it, too); "loop": all after it, or
        the whole run where the end of the first step is not known; "unmeasured": the
        steps of which only the time is known, in one cell "(not measured)".
    wall_ns: how long it took; the cells' `self_ns` add up to it.
    steps: how many training steps are in it.
    step_times: durations of its training steps and evaluation calls.
    cells: for each (chain of calls, phase) the `Totals` of the calls at its end.
    """

    name: PartName = "loop"
    wall_ns: int = 0
    steps: int = 0
    step_times: StepTimes = NO_STEP_TIMES
    cells: Mapping[CellKey, Totals] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cells", MappingProxyType(dict(self.cells)))

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, each.name) for each in fields(self)]
        return Part, (*values[:-1], dict(self.cells))

    def merge(self, other: Part) -> Part:
        """The sum of both parts, with the name of this one."""
        cells = dict(self.cells)
        for key, totals in other.cells.items():
            add_cell(cells, key, totals)
        return Part(
            self.name,
            self.wall_ns + other.wall_ns,
            self.steps + other.steps,
            self.step_times.merge(other.step_times),
            cells,
        )

    def with_cells(self, cells: Cells) -> Part:
        """The same part with other cells, and the wall time that they add up to."""
        return replace(self, cells=cells, wall_ns=sum_of_own_ns(cells))


Parts = tuple[Part, ...]


def merged_parts(*every: Parts) -> Parts:
    """The sums of the parts of several runs, by name, in the order of `PartName`."""
    found: dict[str, Part] = {}
    for part in (part for parts in every for part in parts):
        known = found.get(part.name)
        found[part.name] = known.merge(part) if known else part
    return tuple(found[name] for name in _ORDER if name in found)


def whole_of(parts: Iterable[Part]) -> Part:
    """The sum of all parts of a run."""
    return reduce(Part.merge, parts, Part())


def divided(whole: Part, first: Cells, of_first: StepTimes) -> Parts:
    """Divide a run into start-up and loop. Merged, these are exactly `whole`.

    first, of_first: the cells and the steps of the start-up. Without such cells, the
        loop is the only part.
    """
    if not first:
        return (whole,)
    times = whole.step_times
    left = {
        key: totals.without(first[key]) if key in first else totals
        for key, totals in whole.cells.items()
    }
    start_up = Part("start-up", 0, of_first.steps, of_first).with_cells(first)
    loop = Part(
        "loop",
        whole.wall_ns - start_up.wall_ns,
        whole.steps - start_up.steps,
        times.without(of_first),
        {key: totals for key, totals in left.items() if totals != NOTHING},
    )
    return start_up, loop
