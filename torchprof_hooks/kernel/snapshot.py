"""Makes a `ProfileData` of what a tracker has recorded so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from time import perf_counter_ns
from typing import Any, Final

import numpy as np

from torchprof_hooks.kernel.core import CORE, UNTRIED
from torchprof_hooks.kernel.overhead import counted_ns
from torchprof_hooks.kernel.own_sums import own_host_ns, padded
from torchprof_hooks.kernel.reference.span_log import Times
from torchprof_hooks.kernel.step_counter import FirstReading, StepCounter
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.cells import (
    AFTER_BACKWARD_CELL,
    AFTER_LAST_CELL,
    CellKey,
    add_cell,
    add_outside,
    sum_of_own_ns,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.modules import ModuleInfo, descriptions
from torchprof_hooks.profiles.names import NOT_MEASURED_NAME, OUTSIDE_NAME
from torchprof_hooks.profiles.parts import Part, divided
from torchprof_hooks.profiles.phases import kind_of_other
from torchprof_hooks.profiles.step_times import NO_STEP_TIMES, StepTimes
from torchprof_hooks.profiles.totals import NOTHING, Totals

#: Paths of time outside of all calls; also of time in an optimizer's closure.
_ALL_OUTSIDE: Final = ((), (OUTSIDE_NAME,))

#: Fields of `Totals` that are never larger in a part of a run than in all of it.
_SUMS: Final = ("calls", "self_ns", "duration_ns", "squares_ns2", "flops")


def take_snapshot(
    tracker: Tracker,
    wall_ns: Callable[[], int],
    counted: StepCounter | None = None,
    *,
    first: FirstReading | None = None,
    end_ns: int | None = None,
) -> ProfileData:
    """The profile of a tracker's thread.

    Calls that are still open count with the time until now, but not as calls.

    wall_ns: returns the time measured so far. Called after the sums are read, so that
        they never add up to more.
    counted: the steps that have ended.
    first: all sums as of the end of the first step.
    end_ns: when the time of the thread ended, if that is not now.
    """
    counted = counted or StepCounter()
    tracker.log.fold()
    for observer in tracker.observers:
        observer.settle()
    read = tracker.times()
    late_ns = 0 if end_ns is None else perf_counter_ns() - end_ns
    measured_ns = wall_ns()
    sites = list(tracker.sites)  # the measured thread may have added some
    own_ns = own_host_ns(sites, read, late_ns)
    totals = _totals_of_sites(tracker, sites, read, own_ns)
    cells = _cells(sites, totals, measured_ns, counted)
    times = counted.times()
    whole = Part("loop", measured_ns, times.steps, times, cells)
    of_first = first.counted.times() if first else NO_STEP_TIMES
    first_cells = _first_cells(tracker, sites, first, cells)
    found = ProfileData(
        divided(whole, first_cells, of_first),
        _infos(tracker, cells),
        overhead_ns=counted_ns(sites, padded(read.calls, len(sites)), own_ns),
        aborted_calls=tracker.aborted_calls,
        undivided_passes=tracker.undivided_passes,
        not_measured=(*UNTRIED, *tracker.not_measured),
        core=CORE.name,
        core_reason=CORE.reason,
        step_history=counted.history(),
    )
    for observer in tracker.observers:
        found = observer.added_to(found)
    return found


def _first_cells(
    tracker: Tracker,
    sites: list[Site],
    first: FirstReading | None,
    cells: Mapping[CellKey, Totals],
) -> dict[CellKey, Totals]:
    """The part of these cells that came before the end of the first step; {} if that is
    not known."""
    if first is None:
        return {}
    own_ns = own_host_ns(sites, first.times)
    totals = _totals_of_sites(tracker, sites, first.times, own_ns, of_first_step=True)
    found = _cells(sites, totals, first.wall_ns, first.counted)
    # Time outside of calls may be counted as that after a backward pass by now.
    kept = {k: _part(cells[k], part) for k, part in found.items() if k in cells}
    return {key: part for key, part in kept.items() if part != NOTHING}


def _part(whole: Totals, first: Totals) -> Totals:
    """The first part of the totals of a cell, limited to all of it."""
    least = {n: min(getattr(first, n), getattr(whole, n)) for n in _SUMS}
    return replace(first, **least)


def _cells(
    sites: list[Site],
    every: list[Totals],
    wall_ns: int,
    counted: StepCounter,
) -> dict[CellKey, Totals]:
    """The totals of each cell; together, they take all of `wall_ns`.

    every: the totals of each site.
    """
    cells: dict[CellKey, Totals] = {}
    device_outside_ns = 0
    for site, found in zip(sites, every, strict=True):
        if site.path in _ALL_OUTSIDE:
            device_outside_ns += found.device_self_ns
            continue
        totals = found if site.is_counted else found.without_calls()
        if totals != NOTHING:
            add_cell(cells, (site.path, site.phase), totals)
    outside_ns = wall_ns - sum_of_own_ns(cells)
    outside = Totals(self_ns=outside_ns, device_self_ns=device_outside_ns)
    parts_ns = {
        AFTER_BACKWARD_CELL: counted.after_backward_ns,
        AFTER_LAST_CELL: counted.after_last_ns,
    }
    add_outside(cells, outside, parts_ns)
    return _without_debts(cells)


def _without_debts(cells: dict[CellKey, Totals]) -> dict[CellKey, Totals]:
    """The cells without own times below zero: these become zero, and the largest ones
    shorter, so that the sum stays the same. If a profile is read while calls are open,
    or after an interrupt, some time may be booked twice."""
    debt_ns = -sum(min(totals.self_ns, 0) for totals in cells.values())
    if debt_ns <= 0:
        return cells
    settled = {k: replace(t, self_ns=max(t.self_ns, 0)) for k, t in cells.items()}
    for key in sorted(settled, key=lambda key: -settled[key].self_ns):
        paid_ns = min(settled[key].self_ns, debt_ns)
        settled[key] = replace(settled[key], self_ns=settled[key].self_ns - paid_ns)
        debt_ns -= paid_ns
    return settled


def _totals_of_sites(
    tracker: Tracker,
    sites: list[Site],
    times: Times,
    own_ns: list[int],
    of_first_step: bool = False,
) -> list[Totals]:
    # Each is padded by itself: an interrupt may have left them at different lengths.
    calls, total, shortest, longest = (padded(sums, len(sites)) for sums in times[:4])
    squares = [*times.squares, *[0] * len(sites)]
    columns: dict[str, Sequence[Any]] = {}
    for observer in tracker.observers:
        columns |= observer.columns(np.array(calls), of_first_step)
    return [
        Totals(
            calls=calls[code],
            self_ns=own_ns[code],
            min_ns=shortest[code] if calls[code] else 0,
            max_ns=longest[code],
            duration_ns=total[code],
            squares_ns2=squares[code],
            **{field: values[code] for field, values in columns.items()},
        )
        for code in range(len(sites))
    ]


def _infos(tracker: Tracker, cells: Mapping[CellKey, Totals]) -> dict[str, ModuleInfo]:
    names = dict.fromkeys(name for path, _ in cells for name in path)
    found = descriptions(names, tracker.tree.names.infos)
    return {
        name: replace(info, order=n) for n, (name, info) in enumerate(found.items())
    }


def with_unmeasured(found: ProfileData, wall_ns: int, times: StepTimes) -> ProfileData:
    """The profile with the steps that were not measured, as a part of their own."""
    if not wall_ns:
        return found
    cell: CellKey = (NOT_MEASURED_NAME,), "outside"
    cells = {cell: Totals(self_ns=wall_ns)}
    rest = Part("unmeasured", wall_ns, times.steps, times, cells)
    info = ModuleInfo(kind=kind_of_other(NOT_MEASURED_NAME), order=len(found.modules))
    return replace(
        found,
        parts=(*found.parts, rest),
        modules={**found.modules, NOT_MEASURED_NAME: info},
    )


def merge_snapshots(profiles: list[ProfileData]) -> ProfileData:
    """One profile of several threads or rounds."""
    return reduce(ProfileData.merge, profiles, ProfileData())
