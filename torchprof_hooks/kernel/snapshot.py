"""Makes a `ProfileData` of what a tracker has recorded so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import reduce
from time import perf_counter_ns
from typing import Any, Final

from torchprof_hooks.instruments.devices import (
    SEVERAL_DEVICES,
    DeviceMeter,
)
from torchprof_hooks.instruments.memory.meter import (
    MemoryMeter,
    memory_sums,
    meters_of,
    settle_meters,
)
from torchprof_hooks.kernel.core import CORE, UNTRIED
from torchprof_hooks.kernel.overhead import counted_ns
from torchprof_hooks.kernel.own_sums import (
    own_device_ns,
    own_device_ns_of_first_step,
    own_host_ns,
    own_memory,
    padded,
)
from torchprof_hooks.kernel.reference.span_log import MemorySums, Times
from torchprof_hooks.kernel.step_counter import FirstReading, StepCounter
from torchprof_hooks.kernel.tracker import Tracker
from torchprof_hooks.kernel.tree import Site
from torchprof_hooks.profiles.cells import (
    CellKey,
    add_cell,
    add_outside,
    sum_of_own_ns,
)
from torchprof_hooks.profiles.data import ProfileData
from torchprof_hooks.profiles.memory import MemorySummary, MemoryTotals
from torchprof_hooks.profiles.modules import ModuleInfo, descriptions
from torchprof_hooks.profiles.names import (
    NOT_MEASURED_NAME,
    OUTSIDE_NAME,
    kind_of_other,
)
from torchprof_hooks.profiles.parts import Part, divided
from torchprof_hooks.profiles.step_times import NO_STEP_TIMES, StepTimes
from torchprof_hooks.profiles.totals import NOTHING, Totals

#: Paths of time outside of all calls; also of time in an optimizer's closure.
_ALL_OUTSIDE: Final = ((), (OUTSIDE_NAME,))

#: Fields of `Totals` that are never larger in a part of a run than in all of it.
_SUMS: Final = ("calls", "self_ns", "duration_ns", "squares_ns2", "flops")


def take_snapshot(
    tracker: Tracker,
    wall_ns: Callable[[], int],
    unmeasured: str = "",
    counted: StepCounter | None = None,
    *,
    first: FirstReading | None = None,
    end_ns: int | None = None,
) -> ProfileData:
    """The profile of a tracker's thread.

    Calls that are still open count with the time until now, but not as calls.

    wall_ns: returns the time measured so far. Called after the sums are read, so that
        they never add up to more.
    unmeasured: why memory was not measured, if it should have been.
    counted: the steps that have ended.
    first: all sums as of the end of the first step.
    end_ns: when the time of the thread ended, if that is not now.
    """
    counted = counted or StepCounter()
    read, memory = _settled(tracker)
    late_ns = 0 if end_ns is None else perf_counter_ns() - end_ns
    measured_ns = wall_ns()
    sites = list(tracker.sites)  # the measured thread may have added some
    calls, own_ns = padded(read.calls, len(sites)), own_host_ns(sites, read, late_ns)
    flops = [0] * len(sites)
    if tracker.functions is not None:
        flops = [*map(_flops, sites, calls)]
    device, bytes_ = own_device_ns(tracker, calls), own_memory(memory, tracker, sites)
    totals = _totals_of_sites(sites, read, own_ns, device, bytes_, flops)
    cells = _cells(sites, totals, measured_ns, counted)
    times = counted.times()
    whole = Part("loop", measured_ns, times.steps, times, cells)
    of_first = first.counted.times() if first else NO_STEP_TIMES
    first_cells = _first_cells(tracker, sites, totals, first, cells)
    return ProfileData(
        divided(whole, first_cells, of_first),
        _infos(tracker, cells),
        overhead_ns=counted_ns(sites, calls, own_ns),
        memory=_memory_summary(tracker, unmeasured),
        collectives=tracker.exchanges.read(),
        **_facts(tracker),
        **_device_facts(tracker),
    )


def _flops(site: Site, calls: int) -> int:
    """Floating-point operations of so many calls at `site`, without those that did not
    run to their end."""
    forward, ended = site.made_by or site, max(calls - site.cut, 0)
    if site.phase != "backward":
        return forward.flops if forward.is_mixed else ended * forward.flops
    if forward.is_mixed:  # the mean of those forwards that have a backward
        return ended * forward.gradient_flops // max(forward.with_gradients, 1)
    return ended * forward.gradient_flops


def _facts(tracker: Tracker) -> dict[str, Any]:
    """Fields of a profile that say how it was measured."""
    return {
        "aborted_calls": tracker.aborted_calls,
        "undivided_passes": tracker.undivided_passes,
        "not_measured": (
            *UNTRIED,
            *_unknown_owners(tracker),
            *(
                SEVERAL_DEVICES
                for m in meters_of(tracker, DeviceMeter)
                if m.has_several
            ),
            *tracker.not_measured,
        ),
        "core": CORE.name,
        "core_reason": CORE.reason,
    }


def _device_facts(tracker: Tracker) -> dict[str, Any]:
    """Fields of a profile that say how the clock of a device was read."""
    for meter in meters_of(tracker, DeviceMeter):
        steps = meter.stamped_steps
        return {
            "devices": (meter.name,),
            "device_asked": meter.waits.asked,
            "device_waits": meter.waits.waited,
            "steps_with_device_times": steps.stamped,
            "steps_without_device_times": steps.steps - steps.stamped,
        }
    return {}


def _first_cells(
    tracker: Tracker,
    sites: list[Site],
    every: list[Totals],
    first: FirstReading | None,
    cells: Mapping[CellKey, Totals],
) -> dict[CellKey, Totals]:
    """The part of these totals, and of their cells, that came before the end of the
    first step; {} if that is not known. FLOPs were not read then: they are divided in
    proportion to calls.

    every: the totals of each site.
    """
    if first is None:
        return {}
    calls = padded(first.times.calls, len(sites))
    totals = _totals_of_sites(
        sites,
        first.times,
        own_host_ns(sites, first.times),
        own_device_ns_of_first_step(tracker, sites),
        own_memory(first.memory, tracker, sites),
        [
            whole.flops * some // max(whole.calls, 1)
            for whole, some in zip(every, calls, strict=True)
        ],
    )
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
    add_outside(cells, outside, counted.after_backward_ns)
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


def _settled(tracker: Tracker) -> tuple[Times, MemorySums | None]:
    tracker.log.fold()
    settle_meters(tracker)
    return tracker.times(), memory_sums(tracker)


def _memory_summary(tracker: Tracker, unmeasured: str) -> MemorySummary | None:
    owners = tracker.memory_owners
    for meter in meters_of(tracker, MemoryMeter):
        if owners is not None and owners.are_known():
            return owners.summary(meter.name)
        highest = int(meter.log.high_water_bytes)
        blamed = tracker.sites[meter.log.blamed]
        return MemorySummary(
            meter.name,
            highest,
            blamed.path or (OUTSIDE_NAME,),
            blamed.phase,
        )
    return MemorySummary(unavailable=unmeasured) if unmeasured else None


def _unknown_owners(tracker: Tracker) -> Iterator[str]:
    """Why it is not known who holds a device's memory."""
    owners = tracker.memory_owners
    for meter in meters_of(tracker, MemoryMeter):
        unknown = f"not measured: who holds the memory of {meter.name}"
        if owners is None:
            yield f"{unknown}: that needs the native core"
        elif not owners.are_known():
            yield f"{unknown}: its allocator has not reported each block"


def _totals_of_sites(  # noqa: PLR0917
    sites: list[Site],
    times: Times,
    own: list[int],
    device: list[int],
    memory: list[MemoryTotals],
    flops: list[int],
) -> list[Totals]:
    # Each is padded by itself: an interrupt may have left them at different lengths.
    calls, total, shortest, longest = (padded(sums, len(sites)) for sums in times[:4])
    squares = [*times.squares, *[0] * len(sites)]
    return [
        Totals(
            calls=calls[code],
            self_ns=own[code],
            min_ns=shortest[code] if calls[code] else 0,
            max_ns=longest[code],
            duration_ns=total[code],
            squares_ns2=squares[code],
            device_self_ns=device[code],
            memory=memory[code],
            flops=flops[code],
        )
        for code in range(len(sites))
    ]


def _infos(tracker: Tracker, cells: Mapping[CellKey, Totals]) -> dict[str, ModuleInfo]:
    names = dict.fromkeys(name for path, _ in cells for name in path)
    found = descriptions(names, tracker.names.infos)
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
